"""What elastic training costs in a step on GPUs: plain DDP, each step waiting, and the guard, in turn in the same processes.

    python tests/overhead_cuda.py [WORLD] [CASE …]       needs WORLD GPUs; cases are those of `CASES`

Prints the median time of a step, the median and the worst of the ratios to plain DDP of the same turn, and where the host's time goes.
"""

import fcntl
import os
import statistics
import sys
import time
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import enn.elastic as elastic

# Width and number of layers, rows of a batch, whether with BatchNorm and Dropout, steps of a turn.
CASES = {
    "5ms": (4096, 3, 768, False, 40),
    "30ms": (8192, 4, 1024, False, 12),
    "1000_kernels": (64, 120, 32, False, 15),
    "100_kernels_norm": (2048, 12, 256, True, 30),
    "try": (8, 3, 4, True, 5),
}
LOCKS = []
TURNS = int(os.environ.get("ENN_TEST_TURNS", "7"))
PARTS = ("_contribute", "_begin_to_apply", "_begin_behind_guard", "_look_behind", "commit", "_record", "_settle_one")


def build(case: str) -> torch.nn.Module:
    width, depth, _, has_norm, _ = CASES[case]
    torch.manual_seed(1)
    layers = []
    for _ in range(depth):
        layers += [torch.nn.Linear(width, width), torch.nn.GELU()]
        if has_norm:
            layers += [torch.nn.BatchNorm1d(width), torch.nn.Dropout(0.1)]
    return torch.nn.Sequential(*layers)


class Modes:
    """Switches the steps of a state between plain DDP and the modes of elastic training."""

    def __init__(self, state):
        self.steps = state._steps
        self.times: dict[str, list[float]] = {}

    def plain(self):
        self._set(active=False, ahead=False)

    def wait(self):
        self._set(active=True, ahead=False)

    def guard(self):
        self._set(active=True, ahead=self.steps._guard is not None)

    def other(self):
        """Waits as for an optimizer that is not fused."""
        self._set(active=True, ahead=False)
        self.steps._fused = set()

    def bare(self):
        """Waits and looks, and copies nothing."""
        self._set(active=True, ahead=False)
        steps = self.steps
        steps._contribute = lambda: setattr(steps, "_contributed", steps.position + 1)
        steps.take_snapshot = lambda position, is_entry: setattr(steps, "position", position)

    def wait_timed(self):
        self.wait()
        self._time()

    def guard_timed(self):
        self.guard()
        self._time()

    def _time(self):
        for name in PARTS:
            setattr(self.steps, name, self._timed(name, getattr(self.steps, name)))
        for owner, name in self._others():
            setattr(owner, name, self._timed(f" {name}", getattr(owner, name)))

    def _others(self):
        """Functions that are parts of those."""
        parts = self.steps._parts
        guard = self.steps._guard
        yield from ((parts.small, "capture"), (parts, "pickled_values"), (self.steps._buffers, "capture"))
        yield from ((guard, name) for name in ("read", "wait", "put_into", "take_out") if guard is not None)
        yield self.steps._late_look, "_call"

    def _timed(self, name, function):
        def call(*args, **kwargs):
            begin = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.times.setdefault(name, []).append(time.perf_counter() - begin)

        return call

    def _set(self, active, ahead):
        steps = self.steps
        if steps.is_active:
            steps.settle_all()
        for hook in steps._hooks:
            hook.remove()
        steps._hooks = []
        steps.is_active = active
        steps._fused = set(map(id, steps._parts.optimizers.values())) if steps._guard is not None else set()
        steps._is_ahead = ahead
        for name in ("take_snapshot", *PARTS):
            vars(steps).pop(name, None)
        for owner, name in self._others():
            vars(owner).pop(name, None)
        if active:
            steps._register_hooks()


def turn(net, state, case, device) -> float:
    width, _, rows, _, count = CASES[case]
    batch = torch.randn(rows, width, device=device)
    finish = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    torch.distributed.barrier()
    finish()
    begin = time.perf_counter()
    for _ in range(count):
        state.optimizer.zero_grad(set_to_none=True)
        net(batch).square().mean().backward()
        state.optimizer.step()
        state.scheduler.step()
        state.step += 1
    finish()
    return (time.perf_counter() - begin) / count


def turns_of_cases() -> None:
    """Lets only one of the cases that are started at the same time measure."""
    path = os.environ.get("ENN_TEST_LOCK")
    if path is None:
        return
    begun = f"{path}-{os.environ['ENN_TEST_DIR'].replace('/', '_')}"
    if elastic.rank() == 0:
        lock = open(path, "w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        LOCKS.append(lock)
        open(begun, "w").close()
    while not os.path.exists(begun):
        time.sleep(0.01)


def measure(state, case, device) -> None:
    net = DistributedDataParallel(state.model, device_ids=[device.index] if device.type == "cuda" else None)
    modes = Modes(state)
    turns_of_cases()
    names = ("plain", "wait", "guard", "other", "bare")
    found = {name: [] for name in names}
    for number in range(TURNS + 1):
        for name in names:
            getattr(modes, name)()
            seconds = turn(net, state, case, device)
            if number:
                found[name].append(seconds)
    parts = {}
    for name in ("wait_timed", "guard_timed"):
        getattr(modes, name)()
        modes.times = {}
        turn(net, state, case, device)
        parts[name] = {part: round(statistics.median(values) * 1e6) for part, values in modes.times.items()}
    modes.wait()
    if elastic.rank() == 0:
        for name in names:
            ratios = [one / plain for one, plain in zip(found[name], found["plain"])]
            median = statistics.median(found[name]) * 1000
            print(f"{case} {name}: {median:.3f} ms, {statistics.median(ratios):.4f} of plain, worst {max(ratios):.4f}", flush=True)
        print(f"{case} microseconds of the host: {parts}", flush=True)


def worker(case: str) -> None:
    is_gpu = torch.cuda.is_available()
    elastic.init("nccl" if is_gpu else "gloo")
    device = torch.device("cuda", elastic.local_rank()) if is_gpu else torch.device("cpu")
    if is_gpu:
        torch.cuda.set_device(device)
    model = build(case).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
    state = elastic.State(run_ahead=True, model=model, optimizer=optimizer, scheduler=scheduler)

    @elastic.run(state)
    def train(state):
        measure(state, case, device)

    train(state)


def main() -> None:
    from supervisor import Supervisor

    world = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    for case in sys.argv[2:] or [name for name in CASES if name != "try"]:
        with Supervisor(str(Path(__file__).resolve()), world, arguments=["worker", case]) as supervisor:
            supervisor.finish(150)
            print("\n".join(line for line in supervisor.outputs().splitlines() if not line.startswith("---")), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(sys.argv[2])
    else:
        main()
