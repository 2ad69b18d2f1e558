"""python_first_step_Ngpu, python_restart_Ngpu: an unmodified DDP script on NCCL, from the command to the first step of the last rank, and
from the kill of a worker to the first step of the last rank of the next round, on all GPUs of this machine.

Every launch of `enn run` begins without a process that has imported torch (cold) and has its workers wait for one (`--preload torch`), but
for `--warm`, whose server is there. Peers: torchrun, and `enn run` that executes each worker. Limits: 1.3 times faster than torchrun, never
slower than executed, within a twentieth; warm 5 times on 2 GPUs, 4 times on more; 3.5 s for a restart. Then torch.compile and DataLoader workers, once each, with equal losses.
"""

import pathlib
import statistics
import sys
import tempfile

import _first_steps as bench
import _record as record

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 10
WARM = ("enn", ["--warm"])
WAYS = {"forked": ("enn", ["--preload", "torch"]), "executed": ("enn", ["--preload", "none"]), "torchrun": ("torchrun", [])}


def compare(rounds: int, workers: int, runs: pathlib.Path, program: list[str]) -> dict[str, list[float]]:
    """Runs all in turn and prints what each took."""
    ways = {"warm": WARM, **WAYS}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    losses = []
    with bench.warm_server(workers, runs):
        for _ in range(rounds):
            for way, (who, flags) in ways.items():
                took, loss = bench.first_step(who, flags, workers, runs, program)
                seconds[way].append(took)
                losses.append(loss)
    for way, found in seconds.items():
        print(bench.told(f"{workers} GPUs {' '.join(program)} {way}", found), flush=True)
    # Compiled code may round in another order.
    if "--compile" not in program and any(loss != losses[0] for loss in losses):
        sys.exit(f"the losses differ: {losses}")
    return seconds


def restarts(workers: int, runs: pathlib.Path) -> dict[str, list[float]]:
    """What each took from the kill of a worker to the next first step. Torchrun does not come back every time."""
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for way, (who, flags) in WAYS.items():
        for _ in range(max(2, ROUNDS // 3)):
            try:
                seconds[way].append(bench.restart(who, flags, workers, runs))
            except SystemExit as error:
                print(f"restart, {way}: {error}"[:300], flush=True)
        if seconds[way]:
            print(bench.told(f"{workers} GPUs restart {way}", seconds[way]), flush=True)
    return seconds


def main() -> None:
    gpus = record.gpus()
    workers = sum(int(part.split(" × ")[0]) for part in gpus.split(", ")) if gpus else 0
    if workers < 2:
        print("skipped: two GPUs are needed")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        runs = pathlib.Path(folder)
        found = compare(ROUNDS, workers, runs, [])
        name = f"python_first_step_{workers}gpu"
        passed = record.record(name, "s", "lower", found["forked"], found["torchrun"], "torchrun 2.11", 1.3)
        passed &= record.record(f"{name}_executed", "s", "lower", found["forked"], found["executed"], "enn run, executed", 0.95)
        limit = 5.0 if workers == 2 else 4.0
        passed &= record.record(f"{name}_warm", "s", "lower", found["warm"], found["torchrun"], "torchrun 2.11", limit)
        again = restarts(workers, runs)
        if again["torchrun"]:
            passed &= record.record(f"python_restart_{workers}gpu", "s", "lower", again["forked"], again["torchrun"], "torchrun 2.11", None)
        passed &= statistics.median(again["forked"]) <= 3.5
        compare(1, workers, runs, ["--compile"])
        compare(1, workers, runs, ["--loader-workers", "2"])
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
