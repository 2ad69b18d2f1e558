"""Shows the progress of a command of `enn`: its own lines on a terminal and in a log, one line that is renewed in a notebook."""

import codecs
import contextlib
import os
import subprocess
import sys

from .errors import warn
from .job import STOPPED_CODES, Job, Outcome


def run(arguments: "list[str]", is_shown: bool, names: "dict[str, str]") -> Outcome:
    """Runs a command of `enn`. Raises its error, and warns of its warnings unless it showed them. Ctrl-C stops it in good order."""
    shows_lines = is_shown and not in_notebook()
    if shows_lines and stderr_is_terminal():
        outcome = on_terminal(arguments)
    elif shows_lines:
        outcome = as_lines(arguments)
    else:
        outcome = Job([*arguments, "--quiet"]).follow(NotebookLine().event if is_shown else nothing, nothing)
    if outcome.interrupts > 1:
        raise KeyboardInterrupt
    if outcome.code != 0 and not outcome.is_stopped:
        raise outcome.error(names)
    if not shows_lines:
        for warning in outcome.warnings:
            warn(warning)
    return outcome


def nothing(_shown) -> None:
    """Shows nothing."""


def on_terminal(arguments: "list[str]") -> Outcome:
    """Lets `enn` draw on the terminal itself."""
    sys.stderr.flush()
    return Job(arguments, None).follow(nothing, nothing)


def as_lines(arguments: "list[str]") -> Outcome:
    """Passes the lines of `enn` on to `sys.stderr`, which may be no file."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def show(data: bytes) -> None:
        sys.stderr.write(decoder.decode(data))
        sys.stderr.flush()

    return Job([*arguments, "--lines"], subprocess.PIPE).follow(nothing, show)


def stderr_is_terminal() -> bool:
    with contextlib.suppress(Exception):
        return sys.stderr.fileno() == 2 and os.isatty(2)
    return False


def in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")


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


