"""Finds the program `enn`, starts it, and stops it on Ctrl-C."""

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

from .errors import EnnError

# The kernel asks `enn` to stop when the thread that started it ends: SIGINT is one Ctrl-C. Then this process becomes `enn`.
FOLLOW_PARENT = """import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGINT))
os.getppid() == int(sys.argv[1]) or sys.exit(130)
os.execv(sys.argv[2], sys.argv[2:])"""
READ_BYTES = 1 << 16


def executable() -> str:
    """Returns the path of the program `enn`. Raises `EnnError`, which lists the places."""
    given = os.environ.get("ENN_EXECUTABLE")
    if given:
        if os.access(given, os.X_OK) and not os.path.isdir(given):
            return os.path.abspath(given)
        raise EnnError(f"ENN_EXECUTABLE is {given}, which is no program", "set it to the path of the program enn, or unset it")
    beside = [Path(__file__).parent / "bin" / "enn", Path(sysconfig.get_path("scripts")) / "enn"]
    for path in beside:
        if os.access(path, os.X_OK):
            return str(path)
    found = shutil.which("enn")
    if found:
        return os.path.abspath(found)
    places = ", ".join(str(path) for path in beside)
    raise EnnError(
        f"the program enn was not found: ENN_EXECUTABLE is not set, {places} do not exist, and no directory on PATH has it",
        "install it: pip install enn-run, or set ENN_EXECUTABLE to its path",
    )


def environment() -> "dict[str, str]":
    """Returns the environment of `enn`, which looks for libtorch in the Python that runs."""
    variables = dict(os.environ)
    if sys.executable:
        variables.setdefault("PYTHON_EXEC", sys.executable)
    return variables


def output(arguments: "list[str]") -> "tuple[int, bytes, str]":
    """Runs a short command of `enn`; returns its exit code, its output and its messages."""
    done = subprocess.run([executable(), *arguments], env=environment(), stdin=subprocess.DEVNULL, capture_output=True)
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")


class Job:
    """A command of `enn` that takes a while.

    It has a session of its own, so that a terminal sends Ctrl-C to Python alone, which passes it on. It stops by itself when
    Python is killed.
    """

    def __init__(self, arguments: "list[str]", stdout: int, stderr):
        command = [executable(), *arguments]
        if sys.executable:
            command = [sys.executable, "-I", "-S", "-c", FOLLOW_PARENT, str(os.getpid()), *command]
        self.process = subprocess.Popen(
            command, env=environment(), stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
        )
        self.interrupts = 0

    def follow(self, descriptor: int, show) -> int:
        """Gives `show` the bytes that come from a descriptor of the job, until it ends; returns its exit code.

        The first Ctrl-C asks `enn` to finish the step and to save, the second one to kill its workers.
        """
        try:
            while True:
                try:
                    data = read(descriptor)
                    if not data:
                        return self.process.wait()
                    show(data)
                except KeyboardInterrupt:
                    self.interrupts += 1
                    self.process.send_signal(signal.SIGINT)
        finally:
            self.end()

    def end(self) -> None:
        """Closes what belongs to the job, and stops it if it has not ended, as after an exception in the code that shows its progress."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def read(descriptor: int) -> bytes:
    """Reads what is there; a terminal whose other end is closed is at its end."""
    try:
        return os.read(descriptor, READ_BYTES)
    except OSError:
        return b""
