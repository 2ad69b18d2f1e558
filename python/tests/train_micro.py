"""A training script for tests of worlds that shrink and grow: DDP on the CPU, whose steps do not depend on the number of ranks but for rounding.

Arguments: key=value of steps, ms (sleep in a micro-batch), micro (samples of a micro-batch), hold (a rank that is alone waits behind
this step for another one). While there is a file `no-spares`, spares end.
"""

import os
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import enn.elastic as elastic
from train_common import mark, options, wait_for_go

OPTIONS = options(steps=48, ms=0, micro=4, hold=-1)
ROWS = 96
GLOBAL_BATCH = 8


def main():
    if "RANK" not in os.environ and os.path.exists(os.path.join(os.environ.get("ENN_TEST_DIR", ""), "no-spares")):
        sys.exit(3)
    elastic.init("gloo")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    rows = torch.randn(ROWS, 8)
    data = torch.utils.data.TensorDataset(rows, rows.sum(1, keepdim=True))
    sampler = elastic.Sampler(ROWS, GLOBAL_BATCH, seed=3, micro_batch=OPTIONS["micro"])
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)
    state = elastic.State(model=model, optimizer=optimizer, sampler=sampler, worlds=[])

    @elastic.run(state)
    def train(state):
        wait_for_go()
        net = DistributedDataParallel(state.model)
        while state.step < OPTIONS["steps"]:
            for batch, targets in state.sampler.batches(loader):
                time.sleep(OPTIONS["ms"] / 1000)
                while state.step == OPTIONS["hold"] and elastic.world_size() == 1:
                    time.sleep(0.01)
                with state.sampler.accumulate(net):
                    loss = F.mse_loss(net(batch), targets) / state.sampler.micro_batches
                    loss.backward()
                if state.sampler.is_step_complete:
                    state.optimizer.step()
                    state.optimizer.zero_grad()
                    state.worlds = [*state.worlds, elastic.world_size()]
                    state.step += 1
                    mark(state.step)

    train(state)
    with torch.no_grad():
        loss = F.mse_loss(model(rows), data.tensors[1]).item()
    weights = sum(one.abs().sum().item() for one in model.parameters())
    # The worlds of the steps, each once, in order.
    worlds = [one for number, one in enumerate(state.worlds) if number == 0 or one != state.worlds[number - 1]]
    print(f"end rank={elastic.rank()} step={state.step} loss={loss:.9f} weights={weights:.9f} worlds={worlds}", flush=True)


if __name__ == "__main__":
    main()
