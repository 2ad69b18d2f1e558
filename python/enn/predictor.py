"""A process of `enn` that keeps a model loaded and answers one request after another (`enn predict --requests`).

It ends when its input does: with the `Run` that keeps it, with this Python, however it ends, or when nothing was asked for a while.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import time
import weakref

from .errors import EnnError, failed
from .job import KEPT_BYTES, READ_BYTES, EventLines
from .program import environment, executable

# Seconds without a request after which a predictor ends by itself.
IDLE_S = 60
# A table of more rows is predicted by all workers of `enn predict`, whose start costs little then.
ROWS_MAX = 1 << 16
# As many predictors are kept in one Python: each holds a model and libtorch, some 300 MB. The one that was used longest ago ends first.
KEPT_MAX = 4
END_WAIT_S = 5

kept: "weakref.WeakSet[Predictor]" = weakref.WeakSet()
# Held while a predictor is chosen, started or ended to make room.
choice = threading.Lock()


class PredictorEnded(Exception):
    """A predictor that has ended of itself before it answered: another one can be asked."""


class Predictor:
    """A process that predicts with one run. Its methods may be called by one thread at a time."""

    def __init__(self, run, idle: "int | None"):
        self.idle = idle
        self.used = time.monotonic()
        self.number = 0
        self.lines = EventLines()
        self.said = b""
        self.is_ready = False
        self.is_busy = False
        arguments = [executable(), "predict", str(run), "--requests", *([] if idle is None else ["--idle", str(idle)])]
        events, told = os.pipe()
        try:
            self.process = subprocess.Popen(
                [*arguments, "--events", str(told)],
                env=environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                pass_fds=(told,),
            )
        except BaseException:
            os.close(events)
            raise
        finally:
            os.close(told)
        self.events = open(events, "rb", buffering=0)
        os.set_blocking(self.process.stderr.fileno(), False)
        self.end = weakref.finalize(self, stop, self.process, self.events)
        kept.add(self)

    def ask(self, request: dict) -> "tuple[dict, list[str]]":
        """Sends a request; returns the event that answers it, and warnings. Raises `PredictorEnded`, or `EnnError` if it cannot start."""
        self.number += 1
        line = json.dumps({"request": self.number, **request}).encode() + b"\n"
        # One that has ended says why.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line)
        return self.answer([])

    def answer(self, warnings: "list[str]"):
        while True:
            for event in self.wait():
                kind = event["event"]
                if kind == "ready":
                    self.is_ready = True
                elif kind == "warned":
                    warnings.append(event["message"])
                elif kind == "failed":
                    self.end()
                    raise failed(event, "", event["code"], {})
                elif kind in ("answered", "refused") and event["request"] in (self.number, None):
                    self.used = time.monotonic()
                    return event, warnings

    def wait(self):
        """Returns the next events. What it says besides is kept for the error of a process that ends without one."""
        ready, _, _ = select.select([self.events, self.process.stderr], [], [])
        if self.process.stderr in ready:
            said = self.process.stderr.read(READ_BYTES)
            self.said = (self.said + (said or b""))[-KEPT_BYTES:]
            if said == b"" and self.events not in ready:
                ready, _, _ = select.select([self.events], [], [])
        if self.events not in ready:
            return []
        data = self.events.read(READ_BYTES)
        if data:
            return list(self.lines.take(data))
        self.end()
        if self.is_ready:
            raise PredictorEnded
        raise failed(None, self.said.decode(errors="replace"), self.process.returncode, {})


def stop(process, events) -> None:
    """Ends a predictor: it leaves when its input ends, at once, and is killed if it does not."""
    with contextlib.suppress(OSError):
        process.stdin.close()
    events.close()
    try:
        process.wait(END_WAIT_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    process.stderr.close()


class Keeper:
    """Keeps a predictor for a run, and starts it when it is needed. It may be used by several threads, one after another, and after a fork."""

    def __init__(self, run):
        self.run = run
        self.lock = threading.Lock()
        self.pid = os.getpid()
        self.predictor: "Predictor | None" = None
        self.idle: "int | None" = IDLE_S

    def predict(self, request: dict) -> "tuple[dict, list[str]]":
        """Returns the event that answers a request, and warnings. After Ctrl-C the predictor ends, and `KeyboardInterrupt` goes on."""
        self.separate()
        with self.lock:
            try:
                with contextlib.suppress(PredictorEnded):
                    return self.started(True).ask(request)
                # It ended because nothing was asked for a while, or it was killed.
                return self.started(True).ask(request)
            except PredictorEnded:
                said = self.predictor.said.decode(errors="replace")
                raise failed(None, said, self.predictor.process.returncode, {}) from None
            except BaseException:
                self.drop()
                raise
            finally:
                if self.predictor is not None:
                    self.predictor.is_busy = False

    def prepare(self) -> None:
        """Starts the process before a request is ready, so that both take their time together."""
        self.separate()
        if self.lock.acquire(blocking=False):
            try:
                self.started(False)
            finally:
                self.lock.release()

    def started(self, is_busy: bool) -> Predictor:
        """Returns a predictor that has not ended; a busy one does not make room for others."""
        with choice:
            found = self.predictor
            if found is None or not found.end.alive or found.process.poll() is not None or found.idle != self.idle:
                self.drop()
                make_room()
                self.predictor = Predictor(self.run, self.idle)
            self.predictor.is_busy = is_busy
            return self.predictor

    def separate(self) -> None:
        """A forked child has a predictor of its own: that of its parent is not asked by two."""
        if self.pid != os.getpid():
            self.pid = os.getpid()
            self.lock = threading.Lock()
            self.predictor = None

    def drop(self) -> None:
        if self.predictor is not None and self.pid == os.getpid():
            self.predictor.end()
        self.predictor = None

    def close(self) -> None:
        """Ends the predictor."""
        self.separate()
        with self.lock:
            self.drop()


def make_room() -> None:
    """Ends the predictor that was used longest ago if there are as many as are kept. Its run starts another one when it is asked."""
    living = sorted((one for one in kept if one.end.alive and not one.is_busy), key=lambda one: one.used)
    for one in living[: max(len(living) - KEPT_MAX + 1, 0)]:
        one.end()


def leave_to_parent() -> None:
    """Runs in a forked child: predictors belong to its parent, which alone ends them. Their pipes are closed here, or they would not see its end."""
    global choice
    choice = threading.Lock()
    for one in list(kept):
        one.end.detach()
        # A process object that is not waited for would warn of it.
        one.process.returncode = 0
        for stream in (one.process.stdin, one.process.stderr, one.events):
            with contextlib.suppress(OSError):
                stream.close()
    kept.clear()


os.register_at_fork(after_in_child=leave_to_parent)
