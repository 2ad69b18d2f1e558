"""Trains a small classifier with DistributedDataParallel, and goes on when a worker dies.

    enn run --on-failure replace --spares 1 --nproc-per-node 2 examples/ddp/train.py
    torchrun --nproc-per-node 2 examples/ddp/train.py      # the same file, without recovery

While the first command runs, end one of its workers with `kill -9`: the spare takes its place, and the last line is that of a training in
which nothing happened.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import enn.elastic as elastic

ROWS = 4096
CLASSES = 3


def spirals() -> TensorDataset:
    """Returns points in the plane, and on which of three spirals each of them lies."""
    generator = torch.Generator().manual_seed(0)
    radius = torch.rand(ROWS, generator=generator)
    kind = torch.randint(CLASSES, (ROWS,), generator=generator)
    angle = 5 * radius + kind * (2 * torch.pi / CLASSES) + 0.15 * torch.randn(ROWS, generator=generator)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1), kind)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--slow", type=float, default=0.0, help="seconds to sleep in each step, to have time for a kill")
    arguments = parser.parse_args()

    # It takes the place of torch.distributed.init_process_group().
    elastic.init()

    # The same weights in all processes, whoever starts when.
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 64), torch.nn.ReLU(),
        torch.nn.Linear(64, CLASSES),
    )  # fmt: skip
    # A spare waits here, or before train(), until it is needed: what takes long to load stands above.
    device = torch.device("cuda", elastic.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    model.to(device)

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sampler = elastic.Sampler(ROWS, global_batch=128, seed=0)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs * len(sampler))
    # The loader is made once. Its worker processes live through the failures of others.
    loader = DataLoader(spirals(), batch_sampler=sampler, num_workers=1, persistent_workers=True)

    # All that training changes is named here: it is what a newcomer gets, and what a step that breaks is undone in.
    state = elastic.State(model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler, loss=0.0)

    @elastic.run(state)
    def train(state):
        """Entered again after each failure, in all ranks, with the state behind the last step that was done."""
        # What depends on the other ranks is made here.
        net = DistributedDataParallel(state.model, device_ids=[device.index] if device.type == "cuda" else None)
        while state.sampler.epoch < arguments.epochs:
            for points, kinds in state.sampler.batches(loader):
                time.sleep(arguments.slow)
                loss = F.cross_entropy(net(points.to(device)), kinds.to(device))
                state.optimizer.zero_grad()
                loss.backward()
                state.optimizer.step()
                state.scheduler.step()
                state.loss = 0.9 * state.loss + 0.1 * loss.item()
                # Last: it says that the step is done.
                state.step += 1
            if elastic.rank() == 0:
                print(f"epoch {state.sampler.epoch}: loss {state.loss:.4f}", flush=True)

    train(state)

    if elastic.rank() == 0:
        model.eval()
        points, kinds = (part.to(device) for part in spirals().tensors)
        with torch.no_grad():
            right = (model(points).argmax(1) == kinds).float().mean().item()
        end = "stopped" if state.is_stopped else "trained"
        print(f"{end}: {state.step} steps, loss {state.loss:.9f}, {right:.4%} right", flush=True)


if __name__ == "__main__":
    main()
