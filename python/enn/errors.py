"""The error of this package, and how it is read from what `enn` prints."""

import functools
import os
import re
import sys
import warnings

COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


class EnnError(Exception):
    """A training or a prediction that failed, or a request that cannot be served.

    `message` says what is wrong, `hint` how to fix it (or is None), `code` is the exit code of `enn` (None if it was not started):
    `enn --help` lists the codes.
    """

    def __init__(self, message: str, hint: "str | None" = None, code: "int | None" = None):
        super().__init__(message, hint, code)
        self.message = message
        self.hint = hint
        self.code = code

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"


def failed(failure: "dict | None", said: str, code: int, names: "dict[str, str]") -> EnnError:
    """Returns the error of a command of `enn`, by its last event, else by what it wrote.

    `names` replaces patterns, such as paths that the user has not chosen.
    """
    if failure is not None:
        message, hint, code = failure["message"], failure.get("hint"), failure["code"]
    elif code < 0:
        message, hint = f"enn was ended by {signal_name(-code)}", None
    else:
        _, _, last = COLOURS.sub("", said).replace("\r", "").strip().rpartition("\n")
        message, hint = last.removeprefix("error: ") or f"enn ended with code {code} and said nothing", None
    for pattern, name in names.items():
        message = re.sub(pattern, name, message)
        hint = re.sub(pattern, name, hint) if hint else None
    return EnnError(message, hint, code)


def printed_error(text: str, code: int) -> EnnError:
    """Returns the error in the output of a short command of `enn`."""
    text = COLOURS.sub("", text).replace("\nFor more information, try '--help'.", "")
    _, found, error = ("\n" + text).rpartition("\nerror: ")
    if not found:
        return failed(None, text, code, {})
    message, _, hint = re.sub(r"\n\s+", "\n", error.strip()).partition("\nhint: ")
    return EnnError(message, hint or None, code)


def signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def warn(message: str) -> None:
    """Warns at the line that called this package."""
    level = 2
    frame = sys._getframe(1)
    while frame is not None and os.path.abspath(frame.f_code.co_filename).startswith(PACKAGE):
        level += 1
        frame = frame.f_back
    warnings.warn(message, RuntimeWarning, stacklevel=level)


def entrance(function):
    """Wraps a public function: its errors, and Ctrl-C, leave it without the frames of this package, and without what caused them."""

    @functools.wraps(function)
    def enter(*positional, **named):
        __tracebackhide__ = True  # pytest leaves this frame out, too.
        try:
            return function(*positional, **named)
        except (EnnError, KeyboardInterrupt) as error:
            raised = error.with_traceback(None)
        raise raised from None

    return enter
