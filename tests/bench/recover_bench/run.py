"""recover-bench: one training script under several tools, killed by the same seeds.

    run.py [--device cpu|cuda] [--workers N] [--seeds N] [--tools "NAME;…"] [--out FILE] [--page]

For each seed each tool trains once, in turn, so that whatever else the machine does meets all of them. In a training ranks are killed by
kill -9, two unless --kills says otherwise, at steps and ranks that the seed draws, each when the one before has been replaced. Measured are

- the time from the kill to the end of the first step that all ranks have done since, of which the newcomer's is one;
- the time to the end of the first step that is not done again;
- the steps that are done again;
- the lines that the variant of the script changes;
- whether the parameters at the end are those of an undisturbed training with the same tool, or, with --reference plain, of the plain script.

docs/recover-bench.md describes how each tool is set up and what was found.
"""

import argparse
import dataclasses
import json
import os
import platform
import random
import shutil
import signal
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path

from tools import TOOLS, Job, Plain, Tool, lines_changed

PAGE = Path(__file__).resolve().parents[3] / "docs" / "recover-bench.md"
LOOK_SECONDS = 0.002


class GaveUp(Exception):
    """A training did not go on."""


@dataclasses.dataclass
class Step:
    """A line that a rank has left: when it had done a step."""

    seconds: float
    step: int
    rank: int
    pid: int


@dataclasses.dataclass
class Recovery:
    """What followed a kill."""

    rank: int
    step: int
    all: float
    beyond: float
    again: int


class Watch:
    """The marks of a training under way."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self.steps: list[Step] = []

    def look(self) -> None:
        for path in self._folder.glob("steps-*"):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                whole = file.read().rpartition(b"\n")[0]
            self._offsets[path] = self._offsets.get(path, 0) + len(whole) + bool(whole)
            pid = int(path.name.removeprefix("steps-"))
            for line in whole.decode().splitlines():
                seconds, step, rank, _ = line.split()
                self.steps.append(Step(float(seconds), int(step), int(rank), pid))

    def last_of(self, rank: int) -> Step | None:
        """Returns the newest mark of a rank."""
        return max((one for one in self.steps if one.rank == rank), key=lambda one: one.seconds, default=None)


class Training:
    """One training with a tool, from its start to its end."""

    def __init__(self, tool: Tool, settings: argparse.Namespace, kills: random.Random | None):
        self._tool = tool
        self._settings = settings
        self._kills = kills
        self._folder = Path(tempfile.mkdtemp(prefix="enn-recover-"))
        arguments = [f"--{name}={getattr(settings, name)}" for name in ("steps", "every", "hidden", "layers", "pause", "workers", "device")]
        self._job = Job(self._folder, [*arguments, f"--folder={self._folder}"], settings.workers, settings.kills, settings.device)
        self._watch = Watch(self._folder)
        self.recoveries: list[Recovery] = []
        self.digests: list[str] = []
        self.seconds_to_first_step = 0.0

    def run(self) -> None:
        """Trains. Raises `GaveUp` if the training does not come to its end."""
        begin = time.monotonic()
        hold = self._folder / "hold"
        if self._kills and self._tool.has_spares:
            hold.touch()
        try:
            self._tool.launch(self._job)
            self._until(lambda: all(self._watch.last_of(rank) for rank in range(self._settings.workers)), "the first step")
            self.seconds_to_first_step = min(one.seconds for one in self._watch.steps) - begin
            if hold.exists():
                self._until(lambda: self._tool.is_ready(self._job), "ready spares")
                hold.unlink()
            for _ in range(self._settings.kills if self._kills else 0):
                self._kill_one()
            ends = [self._folder / f"end-{rank}" for rank in range(self._settings.workers)]
            self._until(lambda: all(path.exists() and path.stat().st_size == 16 for path in ends), "the end", may_end=True)
            self.digests = [path.read_text() for path in ends]
        except GaveUp as error:
            logs = [f"--- {path.name}\n{path.read_text(errors='replace')[-600:]}" for path in sorted(self._folder.glob("*.log"))]
            newest = {one.pid: f"rank {one.rank} (pid {one.pid}) step {one.step} at {one.seconds:.2f}" for one in self._watch.steps}
            raise GaveUp("\n".join([str(error), *newest.values(), *logs])) from None
        finally:
            self._end()

    def _kill_one(self) -> None:
        settings = self._settings
        rank = self._kills.randrange(settings.workers)
        after = self._kills.randint(settings.steps // 16, settings.steps // 8)
        delay = self._kills.random()
        begin = self._watch.last_of(rank).step
        self._until(lambda: self._watch.last_of(rank).step >= begin + after, f"step {begin + after}")
        marks = [one.seconds for one in self._watch.steps if one.rank == rank][-6:]
        # Anywhere in a step.
        time.sleep(delay * (marks[-1] - marks[0]) / 5)
        killed = time.monotonic()
        os.kill(self._watch.last_of(rank).pid, signal.SIGKILL)
        self._until(lambda: self._recovery(rank, killed) is not None, "a step of all after the kill")
        self.recoveries.append(self._recovery(rank, killed))

    def _recovery(self, rank: int, killed: float) -> Recovery | None:
        """Returns what followed the kill, once all ranks have done a step since, and one that is not done again."""
        steps = self._watch.steps
        before = {one.pid for one in steps if one.seconds < killed}
        newcomer = next((one.pid for one in steps if one.pid not in before), None)
        mine = [one for one in steps if one.pid == newcomer]
        if len(mine) < self._tool.first_counted:
            return None
        first = mine[self._tool.first_counted - 1]
        # A survivor may have done the same step before, and does it again.
        same = [one for one in steps if one.step == first.step and one.seconds > killed and self._is_of_the_round(one, mine)]
        done = [min((one.seconds for one in same if one.rank == who), default=None) for who in range(self._settings.workers)]
        if None in done:
            return None
        old = [one for one in steps if one.pid in before and one.seconds < mine[0].seconds and not self._is_of_the_round(one, mine)]
        reached = max(one.step for one in old)
        beyond = [one.seconds for one in mine if one.step > reached]
        if not beyond:
            return None
        return Recovery(rank, reached, max(done) - killed, min(beyond) - killed, max(0, reached + 1 - mine[0].step))

    def _is_of_the_round(self, one: Step, mine: list[Step]) -> bool:
        """Returns whether a mark was left in the round in which the newcomer takes part: it is near the newcomer's of the same step."""
        twin = next((other for other in mine if other.step == one.step), None)
        return one.pid == mine[0].pid or (twin is not None and abs(one.seconds - twin.seconds) < 0.5)

    def _until(self, condition, what: str, may_end: bool = False) -> None:
        patience = self._settings.patience
        deadline = time.monotonic() + patience
        while True:
            self._watch.look()
            if condition():
                return
            if all(process.poll() is not None for process in self._job.processes) and not may_end:
                raise GaveUp(f"the tool ended before {what}")
            if time.monotonic() > deadline:
                raise GaveUp(f"{what} did not come within {patience:.0f} s")
            if self._settings.is_ended:
                raise GaveUp(f"ended from outside {patience - (deadline - time.monotonic()):.0f} s into the wait for {what}")
            time.sleep(LOOK_SECONDS)

    def _end(self) -> None:
        """Ends what is left. Processes of the tools may have left their sessions."""
        self._watch.look()
        pids = {one.pid for one in self._watch.steps}
        for process in self._job.processes:
            try:
                process.wait(3 if self.digests else 0.1)
            except Exception:
                pids |= set(below(process.pid))
        for pid in pids:
            end(pid, self._folder)
        for process in self._job.processes:
            process.wait(20)
        shutil.rmtree(self._folder, ignore_errors=True)


def below(pid: int) -> list[int]:
    """Returns a process and all that descend from it."""
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [deeper for child in path.read_text().split() for deeper in below(int(child))]
        except OSError:
            continue
    return found


def end(pid: int, folder: Path) -> None:
    """Kills a process that works in this folder."""
    try:
        if str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes() or os.readlink(f"/proc/{pid}/cwd") == str(folder):
            os.kill(pid, signal.SIGKILL)
    except (OSError, ProcessLookupError):
        pass


@dataclasses.dataclass
class Row:
    """What is known of a tool."""

    tool: Tool
    missing: str
    expected: list[str] = dataclasses.field(default_factory=list)
    recoveries: list[Recovery] = dataclasses.field(default_factory=list)
    failures: list[str] = dataclasses.field(default_factory=list)
    equal: list[bool] = dataclasses.field(default_factory=list)
    firsts: list[float] = dataclasses.field(default_factory=list)

    def train(self, settings: argparse.Namespace, seed: int | None) -> None:
        """Trains once, undisturbed or with the kills of a seed."""
        training = Training(self.tool, settings, random.Random(seed) if seed is not None else None)
        what = f"{self.tool.name}, {'undisturbed' if seed is None else f'seed {seed}'}"
        try:
            training.run()
        except GaveUp as error:
            self.failures.append(str(error))
            self.recoveries += training.recoveries
            print(f"{what}: {error}", flush=True)
            return
        self.firsts.append(training.seconds_to_first_step)
        self.recoveries += training.recoveries
        if seed is None:
            self.expected = training.digests
        else:
            self.equal.append(training.digests == self.expected)
        found = "; ".join(f"rank {one.rank} at {one.step}: {one.all:.2f} s, {one.again} again" for one in training.recoveries)
        print(f"{what}: first step after {training.seconds_to_first_step:.1f} s; {found}; {training.digests[0]}", flush=True)

    def cells(self, settings: argparse.Namespace) -> list[str]:
        """Returns the row of the table."""
        if self.missing:
            return [self.tool.name, "-", f"left out: {self.missing}", *[""] * (len(HEADER) - 3)]
        recovered = f"{len(self.recoveries)} of {settings.seeds * settings.kills}"
        equal = f"{sum(self.equal)} of {settings.seeds}"
        times = [self._both("all", ".2f"), self._both("beyond", ".2f"), self._both("again", ".0f")]
        return [self.tool.name, self.tool.version(), recovered, *times, str(lines_changed(self.tool)), equal]

    def _both(self, name: str, form: str) -> str:
        """Returns median and worst of a figure of all recoveries."""
        values = [getattr(one, name) for one in self.recoveries]
        return f"{statistics.median(values):{form}} / {max(values):{form}}" if values else "-"


TIMES = ["next step of all, s", "next new step, s", "steps again"]
HEADER = ["tool", "version", "recovered", *TIMES, "lines changed", "trainings with equal parameters"]


def table(rows: list[list[str]]) -> str:
    """Returns a table in Markdown."""
    lines = [HEADER, ["---"] * len(HEADER), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine(settings: argparse.Namespace) -> str:
    import torch

    models = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    devices = f", {torch.cuda.device_count()} × {torch.cuda.get_device_name()}" if settings.device == "cuda" else ""
    cores = len(os.sched_getaffinity(0))
    return f"{models[0] if models else platform.machine()}, {cores} cores{devices}; Python {platform.python_version()}, PyTorch {torch.__version__}"


def into_page(title: str, result: str) -> None:
    """Puts a result below its heading in the page, in place of an older one."""
    lines = PAGE.read_text().splitlines()
    begin = lines.index(f"### {title}") + 1
    end = next(number for number in range(begin, len(lines)) if lines[number].startswith("## ") or lines[number].startswith("### "))
    PAGE.write_text("\n".join([*lines[:begin], "", result, "", *lines[end:]]) + "\n")


def train_all(settings: argparse.Namespace, rows: list[Row]) -> None:
    """Trains with all tools in turn, undisturbed and with the kills of each seed."""
    if settings.reference == "plain":
        plain = Row(Plain(), "")
        plain.train(settings, None)
        for row in rows:
            row.expected = plain.expected
    for seed in [*([None] if settings.reference == "tool" else []), *range(settings.seeds)]:
        for row in rows:
            if not settings.is_ended:
                row.train(settings, seed)


def is_called(tool: Tool, name: str) -> bool:
    """Returns whether a tool is meant by its name, or by its first word where no tool has that name."""
    if any(other.name.lower() == name for other in TOOLS):
        return tool.name.lower() == name
    return tool.name.lower().split()[0].strip(",") == name


def main() -> None:
    parser = argparse.ArgumentParser(description="One training script under several tools, killed by the same seeds.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--kills", type=int, default=2, help="in each training")
    parser.add_argument("--reference", choices=("tool", "plain"), default="tool", help="whose undisturbed training has the parameters to reach")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=25, help="steps between two checkpoints")
    parser.add_argument("--hidden", type=int, default=0, help="width of the model; 256 on CPUs and 4096 on GPUs unless given")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.04, help="seconds that reading a batch takes")
    parser.add_argument("--patience", type=float, default=120, help="seconds after which a training that does not go on is given up")
    parser.add_argument("--tools", default="", help="names of tools, or their first words, with ; between them; they are run in this order")
    parser.add_argument("--out", type=Path, help="a file for the table and all figures, as JSON")
    parser.add_argument("--page", action="store_true", help="write the table into docs/recover-bench.md, too")
    settings = parser.parse_args()
    settings.hidden = settings.hidden or (4096 if settings.device == "cuda" else 256)
    settings.is_ended = False
    # The training under way says what it waited for, and what is known by then is printed.
    signal.signal(signal.SIGTERM, lambda *_: setattr(settings, "is_ended", True))
    wanted = [name.strip().lower() for name in settings.tools.split(";") if name]
    tools = [tool for name in wanted for tool in TOOLS if is_called(tool, name)] or TOOLS
    rows = [Row(tool, tool.missing()) for tool in tools]
    before = os.getloadavg()
    train_all(settings, [row for row in rows if not row.missing])
    text = table([row.cells(settings) for row in rows])
    load = f"load {before[0]:.1f} before, {os.getloadavg()[0]:.1f} after"
    about = f"{settings.workers} workers, {settings.steps} steps, a checkpoint every {settings.every}, "
    about += f"median / worst of {settings.seeds} trainings with {settings.kills} kills each"
    result = f"{machine(settings)}; {load}; {about}, {date.today()}.\n\n{text}"
    print(f"\n{result}\n\n" + "\n".join(f"{row.tool.name}: {row.tool.setup}" for row in rows))
    if settings.page:
        into_page(f"{settings.workers} {'GPUs' if settings.device == 'cuda' else 'workers on the CPU'}", result)
    if settings.out:
        found = {row.tool.name: [dataclasses.asdict(one) for one in row.recoveries] for row in rows}
        figures = {"machine": machine(settings), "load": load, "about": about, "recoveries": found, "table": text}
        settings.out.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
