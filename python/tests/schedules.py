"""Seeded schedules of faults for `train_ddp.py` under the supervisor; each run ends with the bits of an undisturbed one.

    schedules.py [--supervisor FILE] [--seeds FIRST:END] [--jobs N] [--keep FOLDER]

FILE is `enn`, which is run as `enn run --on-failure replace`, or `agent_under_test`, which runs the same supervisor by itself. A schedule is drawn from its seed: 2 or 3
workers, 0 to 2 spares, and 1 to 3 faults of `faults.py`, or kills from outside at a time that no place in the code determines. A schedule that
fails prints its seed, what happened, and the command that repeats it. The exit code is 1 if one has failed.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import functools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from faults import PARKED, PLACES

HERE = Path(__file__).resolve().parent
# Steps of a run: epochs of ten steps, since a batch is shared by 2 or 3 workers.
EPOCHS = 4
BATCH = 24
STEPS = EPOCHS * (256 // BATCH)
# A worker that stands still is killed after so many seconds.
HANG_SECONDS = 10
RUN_SECONDS_MAX = 300
RESTARTS_MAX = 50
IN_TRAINING = ("load", "backward", "record", "before_update", "look", "updated", "commit", "committed", "step", "step", "step")
IN_RECOVERY = ("broken", "aborted", "left", "halted", "seated", "met", "formed", "sending", "sent", "taking_over", "taken_over", "ready")
# By how often they are drawn. Exceptions and hangs come before a step, where a script is.
ACTIONS = {"kill": 16, "outside": 8, "kill_two": 4, "kill_others": 4, "kill_all": 1, "raise": 4, "stop": 1, "hang": 1, "hang_in_c": 1}


@dataclasses.dataclass
class Schedule:
    """What is drawn from a seed. `orders` are those of `faults.py`; those with the action `outside` are carried out by this program."""

    seed: int
    world: int
    spares: int
    options: list[str]
    orders: list[dict]

    def hangs(self) -> bool:
        """Returns whether a worker stands still in it."""
        return any(order["action"] in ("stop", "hang", "hang_in_c") for order in self.orders)


def draw(seed: int) -> Schedule:
    """Returns the schedule of a seed."""
    rng = random.Random(seed)
    world = rng.choice((2, 3))
    spares = rng.choice((0, 1, 1, 2))
    options = [f"ms={rng.choice((0, 2, 10))}", f"loaders={rng.choice((1, 2))}", f"persistent={rng.randrange(2)}"]
    options += [f"except={int(rng.random() < 0.2)}"]
    orders = []
    step = 0
    for number in range(rng.choice((1, 2, 2, 3))):
        step = min(step + rng.randint(0, STEPS // 3), STEPS - 2)
        orders.append(_first_fault(rng, number, world, step))
        if rng.random() < 0.4:
            orders.append(_fault_in_recovery(rng, number, world, step))
    if spares and rng.random() < 0.3:
        orders.append({"id": "spare", "place": PARKED, "rank": None, "step": 0, "round": 0, "action": "kill"})
    return Schedule(seed, world, spares, options, orders)


def _first_fault(rng: random.Random, number: int, world: int, step: int) -> dict:
    [action] = rng.choices(list(ACTIONS), list(ACTIONS.values()))
    place = "step" if action in ("raise", "hang", "hang_in_c") else rng.choice(IN_TRAINING)
    return {"id": f"{number}", "place": place, "rank": rng.randrange(world), "step": step, "round": 0, "action": action}


def _fault_in_recovery(rng: random.Random, number: int, world: int, step: int) -> dict:
    action = "stop" if rng.random() < 0.1 else rng.choice(("kill", "kill", "kill", "kill_two", "kill_others"))
    rank = rng.choice((None, *range(world)))
    # What survivors do in a round that breaks, they do before they have a seat in the next one.
    place = rng.choice(IN_RECOVERY)
    first_round = number if IN_RECOVERY.index(place) < IN_RECOVERY.index("seated") else number + 1
    return {"id": f"{number}-again", "place": place, "rank": rank, "step": step, "round": first_round, "action": action}


# Those under way.
RUNS: set = set()


class Run:
    """A supervisor at work in a folder of its own."""

    def __init__(self, supervisor: Path, schedule: Schedule, folder: Path):
        self.schedule = schedule
        self.folder = folder
        self.marks = folder / "marks"
        self.marks.mkdir()
        inside = [order for order in schedule.orders if order["action"] != "outside"]
        (self.marks / "orders").write_text("".join(json.dumps(order) + "\n" for order in inside))
        self.events_path = folder / "events"
        RUNS.add(self)
        with open(self.events_path, "w") as events, open(folder / "supervisor", "w") as errors:
            self.process = subprocess.Popen(
                self._command(supervisor), stdout=events, stderr=errors, env=self._environment(), start_new_session=True
            )

    def _command(self, supervisor: Path) -> list[str]:
        schedule = self.schedule
        script = [str(HERE / "train_ddp.py"), f"epochs={EPOCHS}", f"batch={BATCH}", *schedule.options]
        (self.folder / "run").mkdir()
        if supervisor.name != "agent_under_test":
            flags = ["--standalone", "--json", f"--runs-dir={self.folder / 'run'}", "--on-failure=replace", f"--spares={schedule.spares}"]
            flags += ["--preload=torch", f"--nproc-per-node={schedule.world}", f"--max-restarts={RESTARTS_MAX}", "--grace=5"]
            flags += [f"--hang-timeout={HANG_SECONDS}"] if schedule.hangs() else []
            return [str(supervisor), "run", *flags, *script]
        worker = self.folder / "worker.sh"
        worker.write_text(f"#!/bin/sh\nexec {sys.executable} {' '.join(script)}\n")
        worker.chmod(0o700)
        settings = ["policy=reform", "contract=script", f"spares={schedule.spares}"]
        settings += [f"hang={HANG_SECONDS}"] if schedule.hangs() else []
        return [str(supervisor), str(self.folder / "run"), str(schedule.world), str(RESTARTS_MAX), "5", str(worker), *settings]

    def _environment(self) -> dict[str, str]:
        """Returns the environment of the supervisor, which workers inherit; variables of a run around this one are none of their business."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ENN_")}
        marks = {"ENN_TEST_DIR": str(self.marks), "ENN_TEST_GO": str(self.marks / "go")}
        return kept | marks | {"PYTHONPATH": _python_path(), "PYTHON_EXEC": sys.executable, "OMP_NUM_THREADS": "1"}

    def finish(self) -> str | None:
        """Carries out the orders from outside; returns what is wrong with the end, but for the bits."""
        deadline = time.monotonic() + RUN_SECONDS_MAX
        outside = [order for order in self.schedule.orders if order["action"] == "outside"]
        rng = random.Random(self.schedule.seed)
        go_at = time.monotonic() + 30
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                self.close()
                return f"it has not ended after {RUN_SECONDS_MAX} s"
            if not (self.marks / "go").exists() and (self._spares_are_ready() or time.monotonic() > go_at):
                (self.marks / "go").touch()
            outside = [order for order in outside if not self._kill_from_outside(order, rng)]
            time.sleep(0.005)
        code = self.process.returncode
        return None if code == 0 else f"it ended with exit code {code}"

    def _spares_are_ready(self) -> bool:
        # The supervisor starts spares once all are at work; one that hangs is to be found while they come.
        ready = sum(event["event"] == "spare_ready" for event in self.events())
        started = sum(event["event"] == "worker_ready" for event in self.events())
        return started >= self.schedule.world and (ready >= self.schedule.spares or self.schedule.hangs())

    def _kill_from_outside(self, order: dict, rng: random.Random) -> bool:
        """Kills a rank a random time after it has done the step; returns whether it did."""
        try:
            pid = int((self.marks / f"rank-{order['rank']}").read_text())
            steps = (self.marks / f"steps-{pid}").read_text().split()
        except FileNotFoundError:
            return False
        if not steps or int(steps[-1]) < order["step"]:
            return False
        time.sleep(rng.random() * 0.02)
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return True
        (self.marks / f"done-{order['id']}").touch()
        return True

    def events(self) -> list[dict]:
        """Returns what the supervisor has said."""
        lines = self.events_path.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def done(self) -> set[str]:
        """Returns the orders that were carried out."""
        return {path.name.removeprefix("done-") for path in self.marks.glob("done-*")}

    def logs(self) -> dict[str, str]:
        """Returns what workers printed, by file."""
        paths = sorted((self.folder / "run").rglob("*.log"))
        return {str(path.relative_to(self.folder / "run")): path.read_text(errors="replace") for path in paths}

    def ends(self) -> list[str]:
        """Returns the last lines of the workers that came to the end, by rank, each once."""
        lines = {line for text in self.logs().values() for line in text.splitlines()}
        return sorted(line for line in lines if line.startswith("end "))

    def close(self) -> None:
        """Kills the supervisor, with which its workers end."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        RUNS.discard(self)


def _python_path() -> str:
    # Behind the package may stand another release of torch than that of this interpreter.
    return os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])


class Expected:
    """The last lines of undisturbed runs, by number of workers."""

    def __init__(self, supervisor: Path):
        self._supervisor = supervisor
        self._lock = threading.Lock()
        self._lines: dict[int, list[str]] = {}

    def lines(self, world: int) -> list[str]:
        with self._lock:
            if world not in self._lines:
                schedule = Schedule(0, world, 0, [], [])
                with tempfile.TemporaryDirectory(prefix="enn-schedule-") as folder:
                    run = Run(self._supervisor, schedule, Path(folder))
                    wrong = run.finish()
                    run.close()
                    self._lines[world] = run.ends()
                    if wrong or len(self._lines[world]) != world:
                        sys.exit(f"an undisturbed run failed: {wrong}\n{_story(run)}")
            return self._lines[world]


def _story(run: Run) -> str:
    """Returns what happened, for whoever looks for the cause."""
    parts = [f"orders carried out: {', '.join(sorted(run.done())) or 'none'}"]
    parts += [json.dumps(event) for event in run.events()]
    parts += [(run.folder / "supervisor").read_text()]
    parts += [f"--- {name}\n{text[-4000:]}" for name, text in run.logs().items() if text]
    return "\n".join(parts)


@dataclasses.dataclass
class Result:
    """How a schedule ended. `wrong` is `None` if it ended well."""

    schedule: Schedule
    wrong: str | None
    story: str
    done: set[str]
    restarts: int
    recovered: int
    seconds: float


def run_one(seed: int, supervisor: Path, expected: Expected, keep: Path | None) -> Result:
    """Runs the schedule of a seed."""
    schedule = draw(seed)
    wanted = expected.lines(schedule.world)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="enn-schedule-") as temporary:
        folder = keep / str(seed) if keep else Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        run = Run(supervisor, schedule, folder)
        try:
            wrong = run.finish()
        finally:
            run.close()
        found = run.ends()
        if wrong is None and found != wanted:
            wrong = "the bits differ from an undisturbed run's:\n" + "\n".join(["expected", *wanted, "found", *found])
        kinds = collections.Counter(event["event"] for event in run.events())
        story = _story(run) if wrong else ""
        return Result(schedule, wrong, story, run.done(), kinds["round_failed"], kinds["recovered"], time.monotonic() - begin)


def report(result: Result, arguments: argparse.Namespace) -> None:
    """Prints one line of a schedule that ended well, and all that is known of another one."""
    schedule = result.schedule
    orders = ", ".join(
        f"{order['action']} at {order['place']} of {order['rank']}{'' if order['id'] in result.done else ' (not reached)'}" for order in schedule.orders
    )
    what = f"seed {schedule.seed}: {schedule.world} workers, {schedule.spares} spares, {' '.join(schedule.options)}: {orders}"
    print(f"{what}; {result.recovered} recoveries, {result.restarts} restarts, {result.seconds:.1f} s", flush=True)
    if result.wrong:
        print(f"FAILED: {result.wrong}\n{json.dumps(schedule.orders)}\n{result.story}")
        print(f"repeat it: {sys.executable} {Path(__file__).name} --supervisor {arguments.supervisor} --seeds {schedule.seed}", flush=True)


def end_when_asked(*_: object) -> None:
    """Asked to end, the program ends its runs first."""
    for run in list(RUNS):
        run.process.kill()
    os._exit(143)


def main() -> None:
    signal.signal(signal.SIGTERM, end_when_asked)
    parser = argparse.ArgumentParser(description="Seeded schedules of faults of a Python training script.")
    parser.add_argument("--supervisor", type=Path, default=Path(os.environ.get("ENN_BIN_DIR") or HERE.parents[1] / "target" / "release") / "enn")
    parser.add_argument("--seeds", default="0:10")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder in which the runs' folders stay")
    arguments = parser.parse_args()
    first, _, end = arguments.seeds.partition(":")
    seeds = range(int(first), int(end) if end else int(first) + 1)
    expected = Expected(arguments.supervisor)
    one = functools.partial(run_one, supervisor=arguments.supervisor, expected=expected, keep=arguments.keep)
    failed = []
    done = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for result in pool.map(one, seeds):
            report(result, arguments)
            failed += [result.schedule.seed] if result.wrong else []
            done.update(f"{order['action']} at {order['place']}" for order in result.schedule.orders if order["id"] in result.done)
    print("faults: " + ", ".join(f"{count} × {what}" for what, count in sorted(done.items())))
    missing = [place for place in PLACES if not any(what.endswith(f" at {place}") for what in done)]
    print(f"places without a fault: {', '.join(missing) or 'none'}")
    print(f"{len(seeds) - len(failed)} passed, {len(failed)} failed{': seeds ' + ', '.join(map(str, failed)) if failed else ''}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
