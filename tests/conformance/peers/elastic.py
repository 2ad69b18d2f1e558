"""Training under torchrun as its users write it: DistributedDataParallel on Gloo or NCCL (ENN_BENCH_DEVICE), a snapshot at the end of each epoch, and a start
from the newest one. The peer of the recovery benches. Not shipped.

Usage: torchrun … elastic.py CONFIG STAGED FOLDER. FOLDER/pages/PID holds the optimizer steps done, for whoever watches from outside.
"""

import datetime
import mmap
import os
import pathlib
import struct
import sys
import tomllib

import torch
import torch.distributed as dist
from staged import Rows, fused_adamw
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

EPOCHS = 1_000_000
DEVICE = os.environ.get("ENN_BENCH_DEVICE", "cpu")
MEET_S_MAX = datetime.timedelta(seconds=30)
# Where a page of ENN has the same number; common/src/wire/control.rs.
PAGE_BYTES, STEP_AT = 4096, 16


class Page:
    """Tells how many steps this process has done, without a system call."""

    def __init__(self, folder: pathlib.Path) -> None:
        folder.mkdir(exist_ok=True)
        path = folder / str(os.getpid())
        path.write_bytes(bytes(PAGE_BYTES))
        with path.open("r+b") as file:
            self.map = mmap.mmap(file.fileno(), PAGE_BYTES)

    def tell(self, step: int) -> None:
        struct.pack_into("<Q", self.map, STEP_AT, step)


class Training:
    """What a snapshot holds."""

    def __init__(self, rows: Rows, config: dict, snapshot: pathlib.Path) -> None:
        self.model, self.path = rows.model(config["model"]).to(DEVICE), snapshot
        self.optimizer = fused_adamw(self.model, config["train"])
        self.average = [p.detach().clone() for p in self.model.parameters()]
        self.epoch = self.step = 0
        if snapshot.exists():
            found = torch.load(snapshot, weights_only=True, map_location=DEVICE)
            self.model.load_state_dict(found["model"])
            self.optimizer.load_state_dict(found["optimizer"])
            self.average, self.epoch, self.step = found["average"], found["epoch"], found["step"]

    def save(self) -> None:
        """Whole or not at all."""
        whole = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "average": self.average}
        fresh = self.path.with_suffix(".new")
        torch.save(whole | {"epoch": self.epoch, "step": self.step}, fresh)
        os.replace(fresh, self.path)


def main() -> None:
    """Trains until it is ended."""
    config, staged, folder = tomllib.loads(pathlib.Path(sys.argv[1]).read_text()), *map(pathlib.Path, sys.argv[2:4])
    torch.manual_seed(config["seed"])
    # Gloo may wait for ever when it meets again after a restart (both ranks in connectFullMesh, no connection): then torchrun tries again.
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo", timeout=MEET_S_MAX)
    page, rows = Page(folder / "pages"), Rows(staged).to(DEVICE)
    training = Training(rows, config, folder / "snapshot.pt")
    page.tell(training.step)
    model = DistributedDataParallel(training.model, gradient_as_bucket_view=True)
    sampler = DistributedSampler(range(len(rows)), seed=config["seed"], drop_last=True)
    weights, share = list(model.parameters()), config["train"]["batch"] // dist.get_world_size()
    while training.epoch < EPOCHS:
        sampler.set_epoch(training.epoch)
        for pick in torch.tensor(list(sampler), device=DEVICE).split(share):
            loss = rows.loss(model, pick)
            training.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            training.optimizer.step()
            with torch.no_grad():
                torch._foreach_lerp_(training.average, weights, 0.02)
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            training.step += 1
            page.tell(training.step)
        training.epoch += 1
        if dist.get_rank() == 0:
            training.save()


if __name__ == "__main__":
    main()
