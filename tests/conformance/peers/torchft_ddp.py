"""Training under TorchFT: each worker is a replica group of one, a lighthouse says who takes part, a newcomer gets the state of a
living one. The second peer of the recovery benches. Not shipped.

Gradients are summed by the manager in one piece. TorchFT 0.2.0's own DistributedDataParallel does not outlive a sum that breaks: its hook
asserts a future that is not there then (torchft/ddp.py, `assert fut._fut`), the survivor ends as well, and both begin at step 0.

Usage: torchrun --nproc-per-node 1 … torchft_ddp.py CONFIG STAGED FOLDER, with REPLICA_GROUP_ID and TORCHFT_LIGHTHOUSE; FOLDER as in
elastic.py.
"""

import datetime
import os
import pathlib
import sys
import tomllib

import torch
from elastic import Page
from staged import Rows, fused_adamw
from torch._utils import _flatten_dense_tensors as flatten
from torch._utils import _unflatten_dense_tensors as unflatten
from torchft import Manager, Optimizer, ProcessGroupGloo

WAIT = datetime.timedelta(seconds=30)
REPLICAS = 2


def main() -> None:
    """Trains until it is ended."""
    config, staged, folder = tomllib.loads(pathlib.Path(sys.argv[1]).read_text()), *map(pathlib.Path, sys.argv[2:4])
    replica = os.environ["REPLICA_GROUP_ID"]
    torch.manual_seed(config["seed"])
    page, rows = Page(folder / "pages"), Rows(staged)
    plain = rows.model(config["model"])
    inner = fused_adamw(plain, config["train"])

    def load(state: dict) -> None:
        plain.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=WAIT),
        load_state_dict=load,
        state_dict=lambda: {"model": plain.state_dict(), "optimizer": inner.state_dict()},
        min_replica_size=1,
        timeout=WAIT,
        quorum_timeout=WAIT,
        replica_id=f"replica_{replica}",
        hostname="localhost",
    )
    optimizer = Optimizer(manager, inner)
    weights, share = list(plain.parameters()), config["train"]["batch"] // REPLICAS
    draw = torch.Generator().manual_seed(int(replica))
    while True:
        pick = torch.randint(len(rows), (share,), generator=draw)
        optimizer.zero_grad()
        rows.loss(plain, pick).backward()
        gradients = [weight.grad for weight in weights]
        flat = flatten(gradients)
        # One that breaks is no error here: the step is not committed, and the survivors take it again.
        manager.allreduce(flat).wait()
        for gradient, mean in zip(gradients, unflatten(flat, gradients), strict=True):
            gradient.copy_(mean)
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        page.tell(manager.current_step())


if __name__ == "__main__":
    main()
