"""A supervisor for tests: it starts workers on this machine, speaks the language for scripts with them, and gives empty seats to spares."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch.distributed as dist

from enn.elastic.messages import FrameReader, encode

PYTHON_DIR = Path(__file__).resolve().parent.parent
# Behind it may stand another release of torch than that of this interpreter.
PYTHON_PATH = os.pathsep.join([str(PYTHON_DIR), *filter(None, [os.environ.get("PYTHONPATH")])])
WAIT_SECONDS_MAX = 60
# A worker that does not leave a broken round in this time is killed.
HALT_SECONDS_MAX = 4


@dataclass
class Process:
    """A worker. `seat` is its rank, or `None` for a spare; `round` the last one that it has a seat in; `device` the only
    one that a spare may get."""

    number: int
    popen: subprocess.Popen
    seat: int | None
    device: int | None
    round: int | None = None
    connection: socket.socket | None = None
    reader: FrameReader = field(default_factory=FrameReader)
    halted: dict | None = None
    is_ready: bool = False
    step: int = 0


class Supervisor:
    """Runs `script` in `world` workers, with `spares`, and one spare for each device of `spares_of`.

    Survivors of a death go on in the next round with a spare, or with a new process, in the empty seat. `orders` are faults of `faults.py`.

    Ranks are spread over `nodes`, a spare is on the first one.

    `log` has (seconds, event, …) of what happened.
    """

    def __init__(
        self, script: str, world: int, spares: int = 0, environment: dict | None = None, arguments=(), spares_of=(), orders=(), nodes: int = 1
    ):
        self.directory = tempfile.TemporaryDirectory(prefix="enn-test-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.root = Path(self.directory.name)
        self.script = script
        self.arguments = list(arguments)
        self.world = world
        self.nodes = nodes
        self.environment = environment or {}
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.root / "s"))
        self.listener.listen()
        for node in range(nodes):
            self.seats_of(node).mkdir()
        (self.root / "orders").write_text("".join(json.dumps(order) + "\n" for order in orders))
        self.round = 0
        self.source: dict | None = None
        self.processes: list[Process] = []
        self.log: list[tuple] = []
        self.is_broken = False
        # While this returns false, nobody is told that the round is over.
        self.may_tell = lambda: True
        self.untold: str | None = None
        self.codes: dict[int, int] = {}
        self.pending: list[tuple[socket.socket, FrameReader]] = []
        self.connections: list[socket.socket] = []
        self.killed_at = None
        self.broken_at = 0.0
        for rank in range(world):
            self._start(rank)
        for _ in range(spares):
            self._start(None)
        for device in spares_of:
            self._start(None, device)

    # What a test asks.

    def seated(self, rank: int) -> Process:
        return next(one for one in self.processes if one.seat == rank)

    def spares(self) -> list[Process]:
        return [one for one in self.processes if one.seat is None]

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Kills a worker, and not the processes of its loader."""
        self.killed_at = time.monotonic()
        os.kill(self.seated(rank).popen.pid, number)

    def kill_at(self, rank: int, step: int, pause: float = 0) -> None:
        """Kills a worker when it has done so many steps and a pause (seconds) has passed; waits until all are ready again."""
        self.run_until(lambda: self.all_ready(self.round) and self.seated(rank).step >= step)
        time.sleep(pause)
        after = self.round + 1
        self.kill(rank)
        self.run_until(lambda: self.all_ready(after))

    def run_until(self, condition, seconds: float = WAIT_SECONDS_MAX) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{seconds} s passed; {self.log[-20:]}\n{self.outputs()}")
            self._turn()

    def finish(self, seconds: float = WAIT_SECONDS_MAX) -> None:
        """Runs until all seats have ended with code 0."""
        self.run_until(lambda: len(self.codes) == self.world, seconds)
        for spare in self.spares():
            self._send(spare, "stop")
            spare.popen.wait(WAIT_SECONDS_MAX)

    def ends(self) -> list[str]:
        """Returns what workers printed at their end, by rank."""
        return sorted(line for line in self.outputs().splitlines() if line.startswith(("end ", "stopped ")))

    def all_attached(self) -> bool:
        return all(one.connection is not None for one in self.processes)

    def all_ready(self, round_number: int) -> bool:
        """Returns whether all ranks have joined a round that is no earlier than this one."""
        seated = [one for one in self.processes if one.seat is not None]
        return self.round >= round_number and len(seated) == self.world and all(one.is_ready for one in seated)

    def marks(self, rank: int) -> int:
        """Returns how many steps the process that has a seat has done."""
        path = self.root / f"steps-{self.seated(rank).popen.pid}"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def seconds_to_the_next_step(self) -> float:
        """Waits for it, and returns the time from the last kill to the end of the first step of all ranks behind it."""
        self.run_until(lambda: self._first_steps() is not None)
        return max(self._first_steps()) - self.killed_at

    def _first_steps(self) -> list[float] | None:
        ready = max(entry[0] for entry in self.log if entry[1] == "ready")
        firsts = []
        for process in self.processes:
            if process.seat is not None:
                path = self.root / f"steps-{process.popen.pid}"
                marks = path.read_text().splitlines() if path.exists() else []
                later = [seconds for seconds in (float(mark.split()[0]) for mark in marks) if seconds > ready - 0.002]
                if not later:
                    return None
                firsts.append(later[0])
        return firsts

    def stop(self) -> None:
        """Asks all workers to end."""
        for process in self.processes:
            self._send(process, "stop")

    def outputs(self) -> str:
        texts = []
        for path in sorted(self.root.glob("output-*")):
            texts.append(f"--- {path.name}\n{path.read_text()}")
        return "\n".join(texts)

    def close(self) -> None:
        for process in self.processes:
            _kill_group(process.popen)
        for connection in self.connections:
            connection.close()
        self.listener.close()
        self.directory.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def end_round(self, reason: str) -> None:
        """Tells all that the round is over. A worker that does not leave it is killed."""
        if self.is_broken:
            return
        self.untold = None if self.may_tell() else reason
        if self.untold is not None:
            return
        self.is_broken = True
        self.broken_at = time.monotonic()
        for other in self.processes:
            if other.round == self.round and other.seat is not None:
                self._send(other, "broken", round=self.round, reason=reason)

    def seats_of(self, node: int) -> Path:
        """Returns the folder of the seats of a node. All ranks run on this machine; nodes differ in their folders alone."""
        return self.root / (f"seats-{node}" if node else "seats")

    # How it works.

    def _start(self, seat: int | None, device: int | None = None) -> None:
        number = sum(1 for _ in self.root.glob("output-*"))
        environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        environment |= {
            "PYTHONPATH": PYTHON_PATH,
            "OMP_NUM_THREADS": "1",
            "ENN_SCRIPT_SOCKET": str(self.root / "s"),
            "ENN_WORKER_ID": str(number),
            "ENN_SEAT_DIR": str(self.seats_of((seat or 0) * self.nodes // self.world)),
            "ENN_TEST_DIR": str(self.root),
            "ENN_TEST_GO": str(self.root / "go"),
        }
        if seat is not None:
            environment |= {"RANK": str(seat), "LOCAL_RANK": str(seat), "WORLD_SIZE": str(self.world)}
        elif device is not None:
            environment["LOCAL_RANK"] = str(device)
        environment |= self.environment
        command = [sys.executable, self.script, *self.arguments]
        with open(self.root / f"output-{number}", "w") as output:
            popen = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
        self.processes.append(Process(number, popen, seat, device))
        self._note("started", number, seat)

    def _note(self, *what) -> None:
        self.log.append((round(time.monotonic(), 4), *what))

    def _turn(self) -> None:
        sockets = [one.connection for one in self.processes if one.connection] + [one for one, _ in self.pending]
        readable, _, _ = select.select([self.listener, *sockets], [], [], 0.005)
        if self.listener in readable:
            self.connections.append(self.listener.accept()[0])
            self.pending.append((self.connections[-1], FrameReader()))
        for connection, reader in list(self.pending):
            if connection in readable:
                self._attach(connection, reader)
        for process in list(self.processes):
            if process.connection in readable and process.connection:
                self._read(process)
        for process in list(self.processes):
            if process.popen.poll() is not None:
                self._ended(process)
        if self.untold is not None:
            self.end_round(self.untold)
        self._maybe_seat()
        if self.all_attached():
            # Training begins when the spares are ready, too.
            (self.root / "go").touch()

    def _attach(self, connection: socket.socket, reader: FrameReader) -> None:
        messages = reader.feed(connection.recv(1 << 16))
        if not messages:
            return
        self.pending.remove((connection, reader))
        attach = messages[0]
        assert attach["message"] == "attach" and attach["protocol"] == 2, attach
        process = next(one for one in self.processes if one.number == attach["worker"])
        process.connection = connection
        process.reader = reader
        self._note("attached", process.number)
        if process.seat is not None and not self.is_broken:
            self._assign(process)
        self._heard(process, messages[1:])

    def _assign(self, process: Process) -> None:
        process.halted = None
        process.is_ready = False
        process.round = self.round
        source = self.source or {"rank": None, "step": 0}
        self._send(
            process,
            "assigned",
            round=self.round,
            rank=process.seat,
            world=self.world,
            local_rank=process.seat,
            local_world=self.world,
            master_addr="127.0.0.1",
            master_port=self.store.port,
            store_prefix=f"enn/{self.round}/",
            source_rank=source["rank"],
            step=source["step"],
        )

    def _send(self, process: Process, message: str, **fields) -> None:
        if process.connection is not None:
            try:
                process.connection.sendall(encode(message, **fields))
            except OSError:
                process.connection = None

    def _read(self, process: Process) -> None:
        try:
            received = process.connection.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            process.connection = None
            return
        self._heard(process, process.reader.feed(received))

    def _heard(self, process: Process, messages: list[dict]) -> None:
        for message in messages:
            kind = message["message"]
            if kind == "halted":
                process.halted = message
                self._note("halted", process.seat, message["step"], message["whole"])
            elif kind == "ready":
                process.is_ready = True
                process.step = message["step"]
                self._note("ready", process.seat, message["round"], message["step"])
            elif kind == "progress":
                assert message["round"] >= 0, message
                process.step = message["step"]
            elif kind == "stalled":
                self._note("stalled", process.seat, message["step"], message["waits"])
            elif kind == "failed":
                self._note("failed", process.seat, message["error"])
            elif kind == "parts":
                self._note("parts", process.seat, message["parts"])

    def _ended(self, process: Process) -> None:
        self.processes.remove(process)
        code = process.popen.returncode
        self._note("ended", process.seat, code)
        if process.seat is None:
            return
        if code == 0:
            self.codes[process.seat] = code
            return
        if self.codes:
            raise AssertionError(f"seat {process.seat} failed after others had finished\n{self.outputs()}")
        spares = [one for one in self.spares() if one.connection is not None and one.device in (None, process.seat)]
        if spares:
            spares[0].seat = process.seat
        else:
            self._start(process.seat)
        self.end_round(f"rank {process.seat} ended")

    def _maybe_seat(self) -> None:
        """Begins the next round once all that had a seat in the ended one have left it."""
        if not self.is_broken:
            return
        held = [one for one in self.processes if one.seat is not None and one.connection is not None and one.round == self.round]
        late = [one for one in held if one.halted is None]
        if late and time.monotonic() > self.broken_at + HALT_SECONDS_MAX:
            for one in late:
                self._note("late", one.seat)
                one.popen.kill()
                one.round = None
        if late:
            return
        whole = [one for one in held if one.halted["whole"]]
        best = max(whole, key=lambda one: one.halted["step"], default=None)
        self.source = {"rank": best.seat, "step": best.halted["step"]} if best is not None else None
        self.round += 1
        self.is_broken = False
        self._note("round", self.round, self.source)
        for process in self.processes:
            if process.seat is not None and process.connection is not None:
                self._assign(process)


def _kill_group(popen: subprocess.Popen) -> None:
    try:
        os.killpg(popen.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    popen.wait()
