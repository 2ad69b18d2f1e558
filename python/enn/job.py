"""Commands of `enn` that take a while: they tell what happens in events, lines of JSON on a pipe (`enn train --events`)."""

import json
import os
import selectors
import signal
import subprocess
import sys
from dataclasses import dataclass, field

from .errors import EnnError, failed
from .program import environment, executable

# The version of the events that this package reads. New events and fields do not change it.
VERSION = 1
READ_BYTES = 1 << 16
# Longest line of events (enn says the same), and as much of the rest of the output as may hold the reason of an end.
LINE_BYTES_MAX = 1 << 20
KEPT_BYTES = 1 << 16
# Ended by SIGINT or SIGTERM.
STOPPED_CODES = (130, 143)
# The kernel asks `enn` to stop when the thread that started it ends: SIGINT is one Ctrl-C. Then this process becomes `enn`.
FOLLOW_PARENT = """import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGINT))
os.getppid() == int(sys.argv[1]) or sys.exit(130)
os.execv(sys.argv[2], sys.argv[2:])"""


class EventLines:
    """Events in the bytes of a pipe."""

    def __init__(self):
        self.rest = b""
        self.is_known = False

    def take(self, data: bytes):
        """Yields the events whose lines are complete; one that is not asked for yet is yielded by the next call.

        Raises `EnnError` for what is no line of events.
        """
        self.rest += data
        while b"\n" in self.rest:
            line, _, self.rest = self.rest.partition(b"\n")
            yield self.event(line)
        if len(self.rest) > LINE_BYTES_MAX:
            raise EnnError(f"enn wrote an event of more than {LINE_BYTES_MAX} bytes")

    def event(self, line: bytes) -> dict:
        try:
            event = json.loads(line)
            kind = event["event"]
        except (ValueError, TypeError, KeyError):
            raise EnnError(f"enn wrote {line[:80]!r}, expected an event") from None
        if not self.is_known:
            if kind != "events" or event.get("version") != VERSION:
                found = event.get("version") if kind == "events" else "none"
                raise EnnError(f"enn writes events of version {found}, expected {VERSION}", "install the enn that belongs to this package")
            self.is_known = True
        return event


@dataclass
class Outcome:
    """How a command ended, and what it told."""

    code: int = 0
    # How often Ctrl-C was pressed.
    interrupts: int = 0
    # The directory of the run, if one was begun.
    run: "str | None" = None
    warnings: "list[str]" = field(default_factory=list)
    # The last event, if it is an error.
    failure: "dict | None" = None
    # The end of what was written besides events.
    said: bytes = b""

    def take(self, event: dict) -> None:
        kind = event["event"]
        if kind == "run_started":
            self.run = event["dir"]
        elif kind == "warned":
            self.warnings.append(event["message"])
        elif kind == "failed":
            self.failure = event

    @property
    def is_stopped(self) -> bool:
        return self.code in STOPPED_CODES

    def error(self, names: "dict[str, str]") -> EnnError:
        """Returns the error of a command that failed. `names` replaces patterns, such as paths that the user has not chosen."""
        return failed(self.failure, self.said.decode(errors="replace"), self.code, names)


class Job:
    """A command of `enn` that takes a while.

    It has a session of its own, so that a terminal sends Ctrl-C to Python alone, which passes it on. It stops by itself when
    Python is killed. `stderr` is as in `subprocess.Popen`.
    """

    def __init__(self, arguments: "list[str]", stderr=subprocess.PIPE):
        self.events, told = os.pipe()
        try:
            command = [executable(), *arguments, "--events", str(told)]
            if sys.executable:
                command = [sys.executable, "-I", "-S", "-c", FOLLOW_PARENT, str(os.getpid()), *command]
            self.process = subprocess.Popen(
                command,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
                pass_fds=(told,),
            )
        except BaseException:
            os.close(self.events)
            raise
        finally:
            os.close(told)

    def follow(self, on_event, on_text) -> Outcome:
        """Gives `on_event` each event and `on_text` the bytes of its standard error, if this is a pipe, until it ends.

        The first Ctrl-C asks `enn` to finish the step and to save, the second one to kill its workers.
        """
        outcome = Outcome()
        lines = EventLines()

        def take_events(data: bytes) -> None:
            for event in lines.take(data):
                outcome.take(event)
                on_event(event)

        def take_text(data: bytes) -> None:
            outcome.said = (outcome.said + data)[-KEPT_BYTES:]
            on_text(data)

        with selectors.DefaultSelector() as selector:
            try:
                selector.register(self.events, selectors.EVENT_READ, take_events)
                if self.process.stderr is not None:
                    selector.register(self.process.stderr.fileno(), selectors.EVENT_READ, take_text)
                while selector.get_map():
                    try:
                        self.read(selector)
                    except KeyboardInterrupt:
                        outcome.interrupts += 1
                        self.process.send_signal(signal.SIGINT)
                # An interruption may have left some.
                take_events(b"")
                outcome.code = self.wait(outcome)
                return outcome
            finally:
                self.end()

    @staticmethod
    def read(selector) -> None:
        for key, _ in selector.select():
            data = os.read(key.fd, READ_BYTES)
            if data:
                key.data(data)
            else:
                selector.unregister(key.fd)

    def wait(self, outcome: Outcome) -> int:
        while True:
            try:
                return self.process.wait()
            except KeyboardInterrupt:
                outcome.interrupts += 1
                self.process.send_signal(signal.SIGINT)

    def end(self) -> None:
        """Closes what belongs to the job, and stops it if it has not ended, as after an exception in the code that shows its progress."""
        os.close(self.events)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            if self.process.stderr is not None:
                # Nobody reads any more, and nobody must wait for that.
                self.process.stderr.close()
            self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()
