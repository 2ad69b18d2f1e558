"""A training script for tests: DDP on the CPU with BatchNorm, Dropout, scheduler, averaged weights, and a loader with worker processes.

Arguments: key=value of epochs, batch (rows of a step; 256 make an epoch), loaders (worker processes), persistent (1: loaders live on), ms
(sleep in a step), except (1: a bare `except Exception` around the step; 2: one around both passes, so that the optimizer steps with wrong
gradients), unsafe (1: without looking whether the round is over before a step is applied). Faults come by `faults.py`.
"""

import random
import time

import numpy
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import enn.elastic as elastic
import faults
from train_common import digest, mark, options, wait_for_go

OPTIONS = options(**{"epochs": 4, "batch": 16, "loaders": 2, "ms": 0, "except": 0, "persistent": 0})
ROWS = 256


class Rows(torch.utils.data.Dataset):
    """Rows that depend on random draws where they are read, as augmented images do."""

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        row = torch.randn(8, generator=generator)
        noise = random.random() + float(numpy.random.rand()) + torch.rand(()).item()
        return row + 0.01 * noise, row.sum().reshape(1)


def build():
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(32, 1)
    )


def one_step(net, state, batch):
    rows, targets = batch
    state.optimizer.zero_grad()
    try:
        F.mse_loss(net(rows + 0.01 * torch.randn(8)), targets).backward()
    except Exception as error:
        if OPTIONS["except"] != 2:
            raise
        print("swallowed", type(error).__name__, flush=True)
    state.optimizer.step()
    state.scheduler.step()
    state.ema.update_parameters(state.model)
    state.rows += rows.shape[0]
    state.step += 1


def main():
    faults.install()
    elastic.init("gloo")
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-2, total_steps=OPTIONS["epochs"] * (ROWS // OPTIONS["batch"]))
    ema = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    sampler = elastic.Sampler(ROWS, OPTIONS["batch"], seed=3)
    loader = torch.utils.data.DataLoader(
        Rows(), batch_sampler=sampler, num_workers=OPTIONS["loaders"], persistent_workers=bool(OPTIONS["persistent"] and OPTIONS["loaders"])
    )
    state = elastic.State(model=model, optimizer=optimizer, scheduler=scheduler, ema=ema, sampler=sampler, rows=0)

    @elastic.run(state)
    def train(state):
        wait_for_go()
        random.seed(random.random())
        net = DistributedDataParallel(state.model, find_unused_parameters=True)
        while state.sampler.epoch < OPTIONS["epochs"]:
            for batch in state.sampler.batches(loader):
                faults.at("step")
                if OPTIONS["ms"]:
                    time.sleep(OPTIONS["ms"] / 1000)
                if OPTIONS["except"] == 1:
                    try:
                        one_step(net, state, batch)
                    except Exception as error:
                        print("swallowed", type(error).__name__, flush=True)
                else:
                    one_step(net, state, batch)
                mark(state.step)

    random.seed(elastic.rank())
    numpy.random.seed(elastic.rank())
    torch.manual_seed(elastic.rank())
    train(state)
    draws = f"{random.random():.12f} {numpy.random.rand():.12f} {torch.rand(()).item():.12f}"
    moments = [value for one in optimizer.state.values() for value in one.values()]
    digests = f"model={digest(model.state_dict().values())} ema={digest(ema.parameters())} optimizer={digest(moments)}"
    word = "stopped" if state.is_stopped else "end"
    print(f"{word} rank={elastic.rank()} step={state.step} rows={state.rows} {digests} draws={draws}", flush=True)


if __name__ == "__main__":
    main()
