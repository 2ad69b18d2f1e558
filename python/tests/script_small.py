"""A small training script for tests; the argument says which mistake it makes, or which feature it uses."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import enn.elastic as elastic
from enn.elastic import torch_private

MODE = sys.argv[1]
STEPS = 40
DIRECTORY = os.environ.get("ENN_TEST_DIR", "")


def leave(name):
    with open(os.path.join(DIRECTORY, name), "a") as file:
        file.write(f"{os.getpid()}\n")


def wait_for_go():
    """Waits until the test lets training begin."""
    path = os.environ.get("ENN_TEST_GO")
    while path and not os.path.exists(path):
        time.sleep(0.005)


def die_together():
    """Ends all ranks at once, when the last checkpoint is whole."""
    while not os.path.exists(os.path.join(os.environ["ENN_TEST_CHECKPOINTS"], "step-20-0", ".metadata")):
        time.sleep(0.005)
    leave(f"died-{elastic.rank()}")
    while not all(os.path.exists(os.path.join(DIRECTORY, f"died-{rank}")) for rank in range(elastic.world_size())):
        time.sleep(0.005)
    leave("died-all")
    os._exit(1)


def main():
    if MODE == "release":
        del torch_private.RELEASES[tuple(int(part) for part in torch.__version__.split(".")[:2])]
    elastic.init("gloo")
    if MODE == "outside":
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if MODE == "value":
        elastic.State(model=model, lock=sys.stdout)
    state = elastic.State(model=model, optimizer=optimizer, losses=[])
    if MODE == "dies":
        state.checkpoint(every=10, dir=os.environ["ENN_TEST_CHECKPOINTS"])

    @elastic.run(state)
    def train(state):
        wait_for_go()
        net = DistributedDataParallel(state.model)
        while state.step < STEPS:
            optimizer.zero_grad()
            loss = net(torch.full((2, 4), 0.1 * (elastic.rank() + 1))).square().mean()
            loss.backward()
            if MODE == "closure":
                optimizer.step(lambda: loss)
            optimizer.step()
            # A list that is changed in place is put back, too.
            state.losses.append(state.step)
            if MODE == "fails" and state.step == 7 and not os.path.exists(os.path.join(DIRECTORY, "failed")) and elastic.rank() == 1:
                leave("failed")
                raise ValueError("a mistake of the script")
            if MODE == "dies" and state.step == 25 and not os.path.exists(os.path.join(DIRECTORY, "died-all")):
                die_together()
            if MODE == "hangs" and state.step == 7 and elastic.rank() == 1:
                leave("hanging")
                time.sleep(8)
            state.step += 1
            if MODE == "python" and state.step % 10 == 0:
                leave(f"computing-{state.step}")
                end = time.monotonic() + 1
                while time.monotonic() < end:
                    pass
            if MODE == "checkpoint" and state.step % 10 == 0:
                with state.uninterrupted():
                    leave(f"begun-{state.step}-{elastic.rank()}")
                    time.sleep(1)
                    leave(f"ended-{state.step}-{elastic.rank()}")
            time.sleep(0.005)

    train(state)
    weights = model.weight.detach().sum().item()
    print(f"end rank={elastic.rank()} step={state.step} weights={weights:.9f} complete={state.losses == list(range(STEPS))}", flush=True)


if __name__ == "__main__":
    main()
