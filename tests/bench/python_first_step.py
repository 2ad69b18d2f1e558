"""python_first_step_cpu, _cpu_8, python_memory_8: an unmodified DDP script on Gloo, from the command to the first step of the last rank.

Every launch of `enn run` begins without a process that has imported torch (cold), but for `--warm`, whose server is there. Peers: torchrun 2.11, and `enn run` that executes each
worker; what `--preload torch` takes is printed. Limits: 1.5 times faster than torchrun with 2 workers (10 times warm), 3 times with 8; never slower than
executed, within a twentieth; 8 workers on 2 cores hold 0.4 of the memory.
"""

import pathlib
import sys
import tempfile

import _first_steps as bench
import _record as record

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 10
FORK = ["--preload", "torch"]
EXECUTE = ["--preload", "none"]
WARM = ["--warm"]
WARM_LIMIT = 10.0


def compare(name: str, workers: int, rounds: int, limit: float, runs: pathlib.Path) -> bool:
    """Runs the three in turn."""
    ways = {"warm": ("enn", WARM), "default": ("enn", []), "forked": ("enn", FORK), "executed": ("enn", EXECUTE), "torchrun": ("torchrun", [])}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    losses = []
    with bench.warm_server(workers, runs):
        for _ in range(rounds):
            for way, (who, flags) in ways.items():
                took, loss = bench.first_step(who, flags, workers, runs, [])
                seconds[way].append(took)
                losses.append(loss)
    for way, found in seconds.items():
        print(bench.told(f"{workers} workers, {way}", found), flush=True)
    if any(loss != losses[0] for loss in losses):
        sys.exit(f"the losses differ: {losses}")
    passed = record.record(name, "s", "lower", seconds["default"], seconds["torchrun"], "torchrun 2.11", limit)
    executed = record.record(f"{name}_executed", "s", "lower", seconds["default"], seconds["executed"], "enn run, executed", 0.95)
    warm = record.record(f"{name}_warm", "s", "lower", seconds["warm"], seconds["torchrun"], "torchrun 2.11", WARM_LIMIT)
    return passed and executed and warm


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs = pathlib.Path(folder)
        passed = compare("python_first_step_cpu", 2, ROUNDS, 1.5, runs)
        passed &= compare("python_first_step_cpu_8", 8, max(1, ROUNDS // 3), 3.0, runs)
        forked, executed = ([bench.memory(flags, 8, runs)] for flags in (FORK, EXECUTE))
        passed &= record.record("python_memory_8", "MB", "lower", forked, executed, "enn run, executed", 2.5)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
