"""elastic_overhead: processor time of an undisturbed step under `--policy reform --spares 1` against `--policy restart`, two CPU
workers each; at most 1 % more. elastic_overhead_plain: the same for one worker against a plain loop, the same training without a
launcher (worker/examples/plain_loop.rs). Several runs of each.

Both runs of a comparison work in turn (_slices.py). What is counted is user and system time of launcher, workers and spares, and,
beside it, wall time. The result is the median over the pairs of neighbouring slices, its verdict that of the 95 % interval from resampled runs
and pairs: below, when the whole of it is below 1 %; above, when none of it is; else, or when it is wider than 1 %, undecided, which is no
failure but says nothing either.

`elastic_overhead.py [RUNS SLICES]`: fewer make a wider interval.
"""

import pathlib
import random
import statistics
import subprocess
import sys

import _record as record
import _slices as slices
import _watched as watched

RUNS, SLICES = map(int, sys.argv[1:3] or (4, 150))
SLICE_S = 0.35
RESAMPLES = 2000
OVERHEAD_MAX = 0.01
LIMIT = 1 / (1 + OVERHEAD_MAX)
# Nothing was found out.
SKIPPED = 77


class Plain(watched.Paged):
    """The plain loop, on the run and the staged data of another one."""

    name = "plain loop"

    def __init__(self, run: pathlib.Path, staged: pathlib.Path, folder: pathlib.Path) -> None:
        command = [str(record.ROOT / "target" / "release" / "examples" / "plain_loop"), str(run), str(staged), str(folder)]
        super().__init__(command, folder, record.environment() | {"OMP_NUM_THREADS": "1"})

    def at_work(self) -> list[watched.Page]:
        # It is its own launcher.
        return [page for page in self.pages.values() if page.step() > 0 and len(page.seen) > 1]


def interval(runs: list[list[float]]) -> tuple[float, float]:
    """The median's 95 % interval. Two processes of one program differ, too (where their pages lie, for instance): runs are
    drawn, and pairs of each.
    """
    rng = random.Random(1)
    drawn = lambda: [value for run in rng.choices(runs, k=len(runs)) for value in rng.choices(run, k=len(run))]
    medians = sorted(statistics.median(drawn()) for _ in range(RESAMPLES))
    return medians[RESAMPLES // 40], medians[-RESAMPLES // 40]


def verdict(low: float, high: float) -> str:
    """What an interval of the overhead says."""
    if high - low > OVERHEAD_MAX or low <= OVERHEAD_MAX < high:
        return "undecided"
    return "below" if high <= OVERHEAD_MAX else "above"


def judge(name: str, peer: str, runs: list[list[tuple[slices.Slice, slices.Slice]]], load: list) -> str:
    """The verdict over the pairs of several runs."""
    every = [pair for run in runs for pair in run]
    over = lambda found: [ours.processor_ms / plain.processor_ms - 1 for ours, plain in found]
    over_wall = lambda found: [ours.wall_ms / plain.wall_ms - 1 for ours, plain in found]
    low, high = interval([over(run) for run in runs])
    wall = interval([over_wall(run) for run in runs])
    more = {
        "verdict": verdict(low, high),
        "overhead": statistics.median(over(every)),
        "overhead_interval": [low, high],
        "overhead_by_run": [statistics.median(over(run)) for run in runs],
        "wall_overhead": statistics.median(over_wall(every)),
        "wall_overhead_interval": wall,
        "wall_verdict": verdict(*wall),
        "wall_ms": [statistics.median(pair[which].wall_ms for pair in every) for which in (0, 1)],
        "load": [load, watched.load()],
    }
    plain = [pair[1].processor_ms for pair in every]
    # The ratio is that of the pairs, not that of two medians.
    ours = [statistics.median(plain) * (1 + share) for share in over(every)]
    record.record(name, "ms of processor time", "lower", ours, plain, peer, LIMIT, more)
    print(f"{name}: {len(every)} pairs, {more}", flush=True)
    print(f"{name}: between {low:.2%} and {high:.2%} of processor time: {more['verdict']} {OVERHEAD_MAX:.0%}", flush=True)
    return more["verdict"]


def main() -> None:
    example = ["cargo", "build", "--release", "-p", "enn-worker", "--example", "plain_loop"]
    subprocess.run(example, cwd=record.ROOT, env=record.environment(), check=True)
    flags = ["--set", "train.checkpoint_every=1000000"]
    elastic = [*flags, "--policy", "reform", "--spares", "1"]
    load, against_restart, against_plain = watched.load(), [], []
    epoch = lambda run: run.events("model_built")[0]["steps_per_epoch"]
    with watched.Folder() as folder:
        run = lambda kind, *words, **more: watched.Enn(folder.config, folder.fresh(kind), *words, **more)
        for _ in range(RUNS):
            with run("reform", *elastic) as reform, run("restart", *flags, "--policy", "restart") as restart:
                arms = slices.Arm(reform, watched.WORKERS, SLICE_S), slices.Arm(restart, watched.WORKERS, SLICE_S)
                against_restart.append(slices.pairs(arms, epoch(reform), SLICES))
            with run("one", *elastic, workers=1) as one:
                ours = slices.Arm(one, 1, SLICE_S)
                [directory] = [path.parent for path in one.folder.glob("*/run.json")]
                with Plain(directory, one.staged(), folder.fresh("plain")) as plain:
                    against_plain.append(slices.pairs((ours, slices.Arm(plain, 1, SLICE_S)), epoch(one), SLICES))
    verdicts = [
        judge("elastic_overhead", "enn train --policy restart", against_restart, load),
        judge("elastic_overhead_plain", "a plain loop without a launcher", against_plain, load),
    ]
    sys.exit(1 if "above" in verdicts else SKIPPED if "undecided" in verdicts else 0)


if __name__ == "__main__":
    main()
