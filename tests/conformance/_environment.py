"""Checks that have a Python environment of their own, target/venv-NAME with what requirements-NAME.txt lists."""

import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
BIN = Path(os.environ.get("ENN_BIN_DIR", "target/release"))


def go_on_in(name, check, seconds_max, **variables):
    """Makes the environment, once, and starts the file `check` in it with the argument "here" and these variables; never returns."""
    begun = time.monotonic()
    target = BIN.resolve().parent
    # The interpreter behind an environment has pip.
    subprocess.run([HERE / "venv.sh", sys._base_executable, target, name], check=True, timeout=seconds_max)
    print(f"target/venv-{name} after {time.monotonic() - begun:.1f} s", flush=True)
    python = target / f"venv-{name}" / "bin" / "python"
    os.execve(python, [python, check, "here"], {**os.environ, **variables})
