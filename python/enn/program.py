"""Finds the program `enn`, and runs short commands of it."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from .errors import EnnError


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
        f"{how_to_get(Path(__file__))}, or set ENN_EXECUTABLE to its path",
    )


def how_to_get(package: Path) -> str:
    """Returns how to get the program: `make` builds it in a checkout, pip installs it elsewhere."""
    is_checkout = any((folder / "worker" / "setup" / "libtorch.py").is_file() for folder in package.resolve().parents)
    is_installed = "site-packages" in package.parts
    return "build it: make build" if is_checkout and not is_installed else "install it: pip install enn-run"


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
