"""Shows the progress of a command of `enn`: its own lines on a terminal and in a log, one line that is renewed in a notebook."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile

from .errors import printed_error, printed_warnings, warn
from .program import Job

DEFAULT_COLUMNS, DEFAULT_LINES = 80, 24
KEPT_BYTES = 1 << 18
# Ended by SIGINT or SIGTERM.
STOPPED_CODES = (130, 143)
ERROR = re.compile(rb"^(\x1b\[[0-9;?]*[A-Za-z]|\r)*error:(\x1b\[[0-9;?]*[A-Za-z])* ", re.MULTILINE)
BEGUN = re.compile(rb"(\x1b\[[0-9;?]*[A-Za-z]|\r)*(e|er|err|erro|error|error:)(\x1b\[[0-9;?]*[A-Za-z]?)*")


def run(arguments: "list[str]", is_shown: bool, names: "dict[str, str]") -> bool:
    """Runs a command of `enn`. Returns whether Ctrl-C stopped it. Raises its error, and warns of its warnings unless it showed them."""
    if not is_shown:
        return finish(*quietly(arguments), names, True)
    if in_notebook():
        return finish(*on_notebook(arguments), names, True)
    if stderr_is_terminal():
        return finish(*on_terminal(arguments), names, False)
    return finish(*as_lines(arguments), names, False)


def finish(job: Job, code: int, text: str, names: "dict[str, str]", has_warnings: bool) -> bool:
    if job.interrupts > 1:
        raise KeyboardInterrupt
    is_stopped = code in STOPPED_CODES
    if code != 0 and not is_stopped:
        raise printed_error(text, code, names)
    if has_warnings:
        for warning in printed_warnings(text):
            warn(warning)
    return is_stopped


def quietly(arguments: "list[str]"):
    job = Job([*arguments, "--quiet"], subprocess.DEVNULL, subprocess.PIPE)
    return collect(job, job.process.stderr.fileno(), lambda data: None)


def as_lines(arguments: "list[str]"):
    job = Job(arguments, subprocess.DEVNULL, subprocess.PIPE)

    def show(data: bytes) -> None:
        sys.stderr.write(data.decode(errors="replace"))
        sys.stderr.flush()

    return collect(job, job.process.stderr.fileno(), show)


def collect(job: Job, descriptor: int, show):
    """Follows a job to its end; returns it with its exit code and the text that it wrote. An error is not shown: it is raised."""
    output = Output(show)
    code = job.follow(descriptor, output.take)
    return job, code, output.kept.decode(errors="replace")


class Output:
    """What a job writes: shown up to its error, and kept as far as it is needed to find errors and warnings."""

    def __init__(self, show):
        self.show = show
        self.kept = bytearray()
        self.shown = 0

    def take(self, data: bytes) -> None:
        self.kept.extend(data)
        error = ERROR.search(self.kept, max(self.shown - 1, 0))
        if error:
            end = error.start()
        else:
            # A line that may become an error waits for its rest.
            last = self.kept.rfind(b"\n") + 1
            end = last if BEGUN.fullmatch(self.kept, last) else len(self.kept)
        if end > self.shown:
            self.show(bytes(self.kept[self.shown : end]))
            self.shown = end
        surplus = min(len(self.kept) - KEPT_BYTES, self.shown)
        if surplus > 0:
            del self.kept[:surplus]
            self.shown -= surplus


def stderr_is_terminal() -> bool:
    with contextlib.suppress(Exception):
        return sys.stderr.fileno() == 2 and os.isatty(2)
    return False


def on_terminal(arguments: "list[str]"):
    """Gives `enn` a terminal of its own, whose output is passed on: so it draws as ever, and its error can be read."""
    import fcntl
    import pty
    import struct
    import termios

    try:
        ours, theirs = pty.openpty()
    except OSError:
        return as_lines(arguments)
    seen = None

    def fit() -> None:
        nonlocal seen
        size = (DEFAULT_COLUMNS, DEFAULT_LINES)
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(2)
        if size != seen:
            seen = size
            fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))

    def show(data: bytes) -> None:
        fit()
        while data:
            data = data[os.write(2, data) :]

    fit()
    try:
        try:
            job = Job(arguments, subprocess.DEVNULL, theirs)
        finally:
            os.close(theirs)
        return collect(job, ours, show)
    finally:
        os.close(ours)


def in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")


def on_notebook(arguments: "list[str]"):
    import json

    line = NotebookLine()
    rest = b""

    def show(data: bytes) -> None:
        nonlocal rest
        *events, rest = (rest + data).split(b"\n")
        for event in events:
            with contextlib.suppress(ValueError):
                line.event(json.loads(event))

    with tempfile.TemporaryFile() as errors:
        job = Job([*arguments, "--json"], subprocess.PIPE, errors)
        code = job.follow(job.process.stdout.fileno(), show)
        errors.seek(0)
        return job, code, errors.read().decode(errors="replace")


class NotebookLine:
    """One line of a notebook's output that is renewed with each epoch."""

    def __init__(self):
        from IPython.display import display

        self.show = display
        self.handle = None
        self.epochs = 0
        self.best = None

    def event(self, event: dict) -> None:
        text = self.text(event)
        if text is None:
            return
        from html import escape

        shown = {"text/plain": text, "text/html": f"<pre style='margin:0'>{escape(text)}</pre>"}
        if self.handle is None:
            self.handle = self.show(shown, raw=True, display_id=True)
        else:
            self.handle.update(shown, raw=True)

    def text(self, event: dict) -> "str | None":
        kind = event.get("event")
        if kind == "run_started":
            return f"{event['run']}: reading the table"
        if kind == "staged":
            return f"{event['rows']:,} samples of {event['features']} inputs"
        if kind == "model_built":
            self.epochs = event["steps_total"] // max(event["steps_per_epoch"], 1)
            return f"{event['parameters']:,} parameters, {self.epochs} epochs"
        if kind == "epoch_ended" and event.get("val"):
            best = " (best)" if event.get("best") else ""
            if best:
                self.best = f"best: epoch {event['epoch']}, validation {error_of(event['val'])}"
            return f"epoch {event['epoch']} of {self.epochs}: loss {event['train_loss']:.4g}, validation {error_of(event['val'])}{best}"
        if kind == "trained" and event.get("split"):
            parts = [f"{name} {error_of(figures)}" for name, figures in by_part(event["split"])]
            return f"{event['epoch']} of {self.epochs} epochs in {event['seconds']:.1f} s: " + ", ".join(parts)
        if kind == "run_ended" and event["code"] in STOPPED_CODES:
            return f"stopped after {event['seconds']:.1f} s; {self.best or 'nothing was trained yet'}"
        return None


def by_part(split: dict) -> list:
    """Returns the figures of each part of the table: of training, of validation, and of the test."""
    return [(name, split[name]) for name in ("train", "val", "test") if name in split]


def error_of(figures: dict) -> str:
    if figures.get("accuracy") is not None:
        return f"accuracy {figures['accuracy']:.1%}"
    return f"MAE {figures['mae']:.4g}" if figures.get("mae") is not None else "without a figure"


