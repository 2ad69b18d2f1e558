"""Training with two workers seen from outside: the steps each worker has done, by the clock of the bench, and kill -9.

Ours is `enn train`, the peers are launchers of tests/conformance/peers; both tell their steps in a page of memory that is read
here without disturbing them, so a time is the bench's own for both sides.
"""

import dataclasses
import datetime
import json
import math
import mmap
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import tomllib

import _record as record
import _steps as steps

WORKERS = 2
# Where both sides compute: cpu or cuda.
DEVICE = os.environ.get("ENN_BENCH_DEVICE", "cpu")
YEARS = 20
POLL_S = 0.001
DISCOVER_S = 0.02
JOURNAL_S = 0.05
# Between asking a launcher to end and killing what is left of it.
STOP_S = 20
WAIT_S_MAX = 240.0
# Offset of the optimizer steps done; common/src/wire/control.rs.
STEP_AT, PAGE_BYTES = 16, 4096
PEERS = record.ROOT / "tests" / "conformance" / "peers"
WEATHER = record.ROOT / "examples" / "weather" / "weather.toml"
FOR_EVER = 1_000_000


def python() -> str:
    """A Python with torch 2.11."""
    return os.environ.get("ENN_PYTHON") or sys.exit("set ENN_PYTHON to a Python with torch 2.11 (make conformance builds one)")


def generate(path: pathlib.Path) -> None:
    """Weather of three airports, made up, in the columns of the example: enough rows for an epoch of more than a second."""
    rng = random.Random(7)
    begin = datetime.datetime(1990, 1, 1, 5)
    with path.open("w") as file:
        file.write("origin,temp,dewp,humid,wind_dir,wind_speed,precip,pressure,visib,time_hour\n")
        for hour in range(YEARS * 365 * 24):
            now = (begin + datetime.timedelta(hours=hour)).strftime("%Y-%m-%dT%H:%M:%SZ")
            temp = 52 - 25 * math.cos(hour / 8766 * 2 * math.pi) - 8 * math.cos(hour / 24 * 2 * math.pi)
            for origin in ("EWR", "JFK", "LGA"):
                t = temp + rng.gauss(0, 4)
                rest = f"{60 + rng.gauss(0, 9):.1f},{rng.randrange(36) * 10},{abs(rng.gauss(9, 4)):.2f},0,{1015 + rng.gauss(0, 6):.1f},10"
                file.write(f"{origin},{t:.1f},{t - 9 + rng.gauss(0, 2):.1f},{rest},{now}\n")


def configuration(folder: pathlib.Path) -> pathlib.Path:
    """The weather example on more rows, without end, one thread for each worker, a checkpoint at the end of each epoch."""
    generate(folder / "weather.csv")
    text = WEATHER.read_text()
    ends = {"epochs = 20": f"epochs = {FOR_EVER}", "patience = 10": "patience = 0\nthreads = 1", "checkpoint_every = 5": "checkpoint_every = 1"}
    for old, new in ends.items():
        if text.count(old) != 1:
            sys.exit(f"{WEATHER}: {old!r} is not there once")
        text = text.replace(old, new)
    config = folder / "weather.toml"
    config.write_text(text)
    tomllib.loads(text)
    return config


@dataclasses.dataclass
class Page:
    """What one worker process says."""

    pid: int
    map: mmap.mmap
    # Each change that was seen: when, and the steps done.
    seen: list[tuple[float, int]] = dataclasses.field(default_factory=list)

    def read(self, now: float) -> None:
        [step] = struct.unpack_from("<Q", self.map, STEP_AT)
        if not self.seen or self.seen[-1][1] != step:
            self.seen.append((now, step))

    def step(self) -> int:
        return self.seen[-1][1] if self.seen else 0


def alive(pid: int) -> bool:
    """Whether the process runs; one that nobody has waited for is dead."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    """Processes that any of its threads started."""
    found: list[int] = []
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, path.read_text().split())
        except OSError:
            continue
    return found


def below(pid: int) -> list[int]:
    """The process and all that descend from it."""
    return [pid, *(deeper for child in children(pid) for deeper in below(child))]


class Run:
    """A launcher, its workers' pages, and what was seen. Ends them all at the end."""

    name = ""

    def __init__(self, command: list[str], folder: pathlib.Path, environment: dict[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log = (folder / "launcher.log").open("wb")
        self.child = subprocess.Popen(command, env=environment, stdout=self.log, stderr=self.log, cwd=folder, start_new_session=True)
        self.pages: dict[int, Page] = {}
        self.discovered = 0.0

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *_: object) -> None:
        everybody = below(self.child.pid)
        self.child.terminate()
        try:
            self.child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            everybody += below(self.child.pid)
        for pid in everybody:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.child.wait(WAIT_S_MAX)
        self.log.close()

    def discover(self) -> None:
        """Maps the pages of new workers."""
        raise NotImplementedError

    def look(self) -> float:
        """Reads all pages; when."""
        now = time.monotonic()
        if now - self.discovered > DISCOVER_S:
            self.discover()
            self.discovered = now
        for page in self.pages.values():
            page.read(now)
        return now

    def until(self, enough, what: str, wait_s: float = WAIT_S_MAX) -> float:
        """Looks until `enough()`; when that was."""
        begun = time.monotonic()
        while True:
            now = self.look()
            if enough():
                return now
            if self.child.poll() is not None or now - begun > wait_s:
                tail = (self.folder / "launcher.log").read_bytes()[-3000:].decode(errors="replace")
                sys.exit(f"{self.name}: {what} did not happen within {wait_s:.0f} s (exit {self.child.poll()}): {tail}")
            time.sleep(POLL_S)

    def rest(self, seconds: float) -> None:
        """Looks on for so long."""
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= end, "time", seconds + WAIT_S_MAX)

    def at_work(self) -> list[Page]:
        """Living workers that have done a step, the newest last."""
        return [page for page in self.pages.values() if page.step() > 0 and len(page.seen) > 1 and alive(page.pid)]

    def step(self) -> int:
        """Steps that stand: of the worker that told any last."""
        told = [page.seen[-1] for page in self.pages.values() if page.step() > 0]
        return max(told)[1] if told else 0

    def prepared(self) -> bool:
        """Whether a kill now meets what the run promises."""
        return len(self.at_work()) == WORKERS

    def wait_prepared(self) -> None:
        self.until(self.prepared, "all at work")

    def kill(self, victim: int) -> float:
        """kill -9 of one of those at work, in the order of their starts; of one that is not yet, when nobody is; when."""
        pages = self.at_work() or [page for page in self.pages.values() if alive(page.pid)]
        now = time.monotonic()
        if pages:
            os.kill(pages[victim % len(pages)].pid, signal.SIGKILL)
        return now

    def recover(self, victim: int) -> "Recovery":
        """Kills one and waits until a newcomer has done a step with the others, and again until no step is missing any more."""
        at_work = {page.pid for page in self.at_work()}
        killed = self.kill(victim)

        # One that has told steps from a checkpoint or a survivor, and has then done one: all of the group have done it.
        def newcomers() -> list[Page]:
            fresh = (page for page in self.pages.values() if page.pid not in at_work)
            return [page for page in fresh if len([step for _, step in page.seen if step > 0]) > 1 and alive(page.pid)]

        self.until(newcomers, "a step after the kill")
        page = newcomers()[0]
        told = [(at, step) for at, step in page.seen if step > 0]
        (begun, resumed), (first, _) = told[0], told[1]
        reached = max(step for pid in at_work for at, step in self.pages[pid].seen if at < begun)
        self.until(lambda: page.step() > reached, "the step that was reached")
        beyond = next(at for at, step in page.seen if step > reached)
        changes = (change for page in self.pages.values() for change in page.seen)
        one = min(at for at, step in changes if at >= begun and step > resumed)
        # Of those that go on by themselves the first step may have been under way.
        after = ([at for at, step in page.seen if at > killed and step > 0][1:2] for page in self.pages.values())
        alone = min(at for second in after for at in second)
        return Recovery(first - killed, one - killed, beyond - killed, max(0, reached - resumed), alone - killed)


@dataclasses.dataclass
class Recovery:
    """From kill -9: seconds to the first step that all have done, seconds until one of them had done it, seconds to the first
    that is not done again, steps done again, seconds until anybody, a survivor too, had begun a step and done it."""

    first: float
    one: float
    beyond: float
    again: int
    alone: float


class Enn(Run):
    """`enn train`."""

    name = "enn train"

    def __init__(self, config: pathlib.Path, folder: pathlib.Path, *flags: str, workers: int = WORKERS, threads: int = 1) -> None:
        wanted = [] if "--workers" in flags else ["--nproc-per-node", str(workers)]
        command = [record.binary("enn"), "train", str(config), *wanted, "--device", DEVICE, "--quiet"]
        environment = steps.library_environment(DEVICE) | {"OMP_NUM_THREADS": str(threads)}
        super().__init__([*command, "--runs-dir", str(folder), *flags], folder, environment)
        self.spares = int(flags[flags.index("--spares") + 1]) if "--spares" in flags else 0
        self.told: list[dict] = []
        self.read_at, self.read_bytes = 0.0, 0

    def discover(self) -> None:
        for pid in children(self.child.pid):
            if pid in self.pages:
                continue
            try:
                variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                [number] = [v.split(b"=")[1].decode() for v in variables if v.startswith(b"ENN_CONTROL_FD=")]
                with open(f"/proc/{pid}/fd/{number}", "rb") as file:
                    self.pages[pid] = Page(pid, mmap.mmap(file.fileno(), PAGE_BYTES, prot=mmap.PROT_READ))
            except (OSError, ValueError):
                # Not yet our worker, or no more.
                continue

    def events(self, *names: str) -> list[dict]:
        """What the journal says, of these kinds."""
        journals = list(self.folder.glob("*/events.jsonl"))
        if journals and time.monotonic() - self.read_at > JOURNAL_S:
            self.read_at = time.monotonic()
            with journals[0].open("rb") as file:
                file.seek(self.read_bytes)
                whole = file.read().rpartition(b"\n")[0]
            self.read_bytes += len(whole) + 1 if whole else 0
            self.told += [json.loads(line) for line in whole.splitlines() if b'"stepped"' not in line]
        return [event for event in self.told if event["event"] in names]

    def warm(self) -> bool:
        """Whether as many spares stand by as were asked for."""
        ready = {event["pid"] for event in self.events("spare_ready")}
        gone = {event["pid"] for event in self.events("seat_taken", "spare_ended")}
        return len([pid for pid in ready - gone if alive(pid)]) >= self.spares

    def prepared(self) -> bool:
        return super().prepared() and (self.spares == 0 or self.warm())

    def staged(self) -> pathlib.Path:
        """The staged directory, which the peer reads too."""
        return pathlib.Path(self.events("staged")[0]["dir"])


class Paged(Run):
    """A peer, whose workers leave their pages in a folder."""

    def discover(self) -> None:
        for path in (self.folder / "pages").glob("*"):
            pid = int(path.name)
            if pid not in self.pages and path.stat().st_size == PAGE_BYTES:
                with path.open("rb") as file:
                    self.pages[pid] = Page(pid, mmap.mmap(file.fileno(), PAGE_BYTES, prot=mmap.PROT_READ))


class Torchrun(Paged):
    """torchrun 2.11 with peers/elastic.py."""

    name = "torchrun"

    def __init__(self, config: pathlib.Path, staged: pathlib.Path, folder: pathlib.Path, restarts: int) -> None:
        launcher = [python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORKERS)]
        script = [str(PEERS / "elastic.py"), str(config), str(staged), str(folder)]
        environment = record.peer_environment() | {"OMP_NUM_THREADS": "1"}
        super().__init__([*launcher, "--max-restarts", str(restarts), *script], folder, environment)

    def wait_snapshot(self) -> None:
        """Until there is something to start again from."""
        self.until((self.folder / "snapshot.pt").exists, "the first snapshot")


class Torchft(Paged):
    """TorchFT: a lighthouse, and torchrun for each of two replica groups of one worker. Its packages, but for torch, are in
    ENN_TORCHFT, else where `make torchft` puts them.
    """

    name = "TorchFT"
    packages = os.environ.get("ENN_TORCHFT") or str(record.ROOT / "target" / "envs" / "torchft")
    port = 29710

    @classmethod
    def missing(cls) -> str:
        """Why it cannot run here; empty when it can."""
        if DEVICE != "cpu":
            return "peers/torchft_ddp.py computes on the CPU"
        tried = [python(), "-c", "import torchft, torchft._torchft"]
        environment = record.peer_environment() | {"PYTHONPATH": cls.packages}
        done = subprocess.run(tried, env=environment, capture_output=True, text=True, check=False)
        return f"{cls.packages}: {(done.stderr.splitlines() or ['?'])[-1]} (make torchft)" if done.returncode else ""

    def __init__(self, config: pathlib.Path, staged: pathlib.Path, folder: pathlib.Path, restarts: int) -> None:
        Torchft.port += 1
        folder.mkdir(parents=True, exist_ok=True)
        lighthouse = folder / "lighthouse.py"
        lighthouse.write_text("from torchft._torchft import lighthouse_main\nlighthouse_main()\n")
        script = f"{PEERS / 'torchft_ddp.py'} {config} {staged} {folder}"
        torchrun = f"{python()} -m torch.distributed.run --standalone --nproc-per-node 1 --max-restarts {restarts} {script}"
        groups = " ".join(f"REPLICA_GROUP_ID={group} {torchrun} &" for group in range(WORKERS))
        wanted = f"--min_replicas 1 --bind 127.0.0.1:{self.port}"
        command = f"{python()} {lighthouse} {wanted} & {groups} wait"
        environment = record.peer_environment() | {"OMP_NUM_THREADS": "1", "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{self.port}"}
        environment["PYTHONPATH"] = self.packages
        super().__init__(["bash", "-c", command], folder, environment)


class Folder:
    """A private folder with the configuration; runs get folders in it."""

    def __init__(self) -> None:
        end_when_asked()
        self.base = pathlib.Path(tempfile.mkdtemp(prefix="enn-bench-"))
        self.config, self.count = configuration(self.base), 0

    def __enter__(self) -> "Folder":
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.base, ignore_errors=True)

    def fresh(self, what: str) -> pathlib.Path:
        """A folder for a run."""
        self.count += 1
        return self.base / f"{self.count}-{what}"


def end_when_asked() -> None:
    """Asked to end, a bench ends its runs first."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))


def load() -> list[float]:
    """What else the machine does: the load of 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]
