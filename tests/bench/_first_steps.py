"""From the command to the first step of the last rank of an unmodified DDP script: torchrun, `enn run` that executes each worker, and `enn
run` that forks them from a process that has imported torch, for this run or long before; and the same after the kill of a worker.
"""

import contextlib
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import _launchers as launchers
import _record as record

PROGRAM = pathlib.Path(__file__).with_name("_first_step_program.py")
LINE = re.compile(r"step (\d+) rank (\d+) pid (\d+) restart (\d+) at ([\d.]+) loss ([-+.\dinfa]+)")


class Step(NamedTuple):
    """One step of one rank, as the program printed it."""

    step: int
    rank: int
    pid: int
    restart: int
    at: float
    loss: str


def steps(lines) -> list[Step]:
    """All steps that were printed; lines of ranks can share one."""
    found = (LINE.findall(line) for _, line in lines)
    return [Step(*map(int, words[:4]), float(words[4]), words[5]) for line in found for words in line]


def first(lines, restart: int = 0) -> dict[int, Step]:
    """The first step of each rank after so many restarts."""
    return {step.rank: step for step in steps(lines) if step.step == 0 and step.restart == restart}


def launch(who: str, flags: list[str], workers: int, runs: pathlib.Path, program: list[str]) -> launchers.Launch:
    """A launch, whose first steps are done."""
    started = launchers.Launch(who, [*flags, "--nproc-per-node", str(workers), str(PROGRAM), *program], runs)
    started.until(lambda lines: len(first(lines)) >= workers)
    return started


def first_step(who: str, flags: list[str], workers: int, runs: pathlib.Path, program: list[str]) -> tuple[float, dict]:
    """Seconds until the first step of the last of `workers`, and the losses that were printed, by rank and step."""
    started = launch(who, flags, workers, runs, program)
    last = max(step.at for step in first(started.lines).values())
    rest = started.child.communicate(timeout=120)[0].decode().splitlines()
    if started.child.returncode != 0:
        sys.exit(f"{who} {flags} with {workers} workers ended with {started.child.returncode}")
    lines = [*started.lines, *((0.0, line) for line in rest)]
    return last - started.begun, {(step.rank, step.step): step.loss for step in steps(lines)}


def restart(who: str, flags: list[str], workers: int, runs: pathlib.Path) -> float:
    """Seconds from the kill of the last rank to the first step of the last rank of the next round."""
    started = launch(who, [*flags, "--max-restarts", "1"], workers, runs, ["--hold"])
    victim = first(started.lines)[workers - 1].pid
    begun = time.time()
    os.kill(victim, signal.SIGKILL)
    started.until(lambda lines: len(first(lines, 1)) >= workers)
    last = max(step.at for step in first(started.lines, 1).values())
    started.stop()
    return last - begun


@contextlib.contextmanager
def warm_server(workers: int, runs: pathlib.Path):
    """A warm server of this bench's own, which the run that starts it has used already."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        try:
            first_step("enn", ["--warm"], workers, runs, [])
            yield
        finally:
            subprocess.run([record.binary("enn"), "warm", "stop"], check=True, stdout=subprocess.DEVNULL)


def proportional(pids: list[int]) -> float:
    """Megabytes that processes hold, what several share divided between them."""
    def one(pid: int) -> int:
        text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
        return int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1])

    return sum(map(one, pids)) / 1024


def memory(flags: list[str], workers: int, runs: pathlib.Path) -> float:
    """Megabytes of the workers of `enn run` after their first steps."""
    started = launch("enn", flags, workers, runs, ["--hold"])
    held = proportional([step.pid for step in first(started.lines).values()])
    started.stop()
    return held


def told(name: str, seconds: list[float]) -> str:
    """A line about one launcher."""
    return f"{name}: median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s, of {len(seconds)}"
