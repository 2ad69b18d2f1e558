"""Runs step_bench and its peers: one budget of time, lines of JSON, and no process left behind."""

import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import _record as record

PEERS = record.ROOT / "tests" / "conformance" / "peers" / "step.py"
SIZES = record.ROOT / "tests" / "bench" / "sizes.json"
# Between asking a run to stop and killing it; enn run hands the wish on to its workers.
STOP_S = 10
# As `enn train` starts its workers; launcher/process/src/worker_program.rs.
WORKER_SPINS = "1000"


def binary(name: str, device: str) -> pathlib.Path:
    """Where `make build-all` or `make cuda` puts a program."""
    folder = "cuda/release" if device == "cuda" else "release"
    return record.ROOT / "target" / folder / name


def python() -> str:
    """A Python with torch."""
    return os.environ.get("ENN_PYTHON") or sys.executable


@functools.cache
def torch_says(expression: str) -> str:
    """What an expression of torch is in the peers' Python. Asking takes seconds, which are nobody's that is measured."""
    code = f"import torch, pathlib; print({expression})"
    asked = subprocess.run([python(), "-c", code], env=record.peer_environment(), capture_output=True, text=True, check=True)
    return asked.stdout.strip()


def library_environment(device: str) -> dict[str, str]:
    """Ours on a GPU runs on the libtorch of the peer: one library for both. On a CPU threads wait for each other as a worker's do."""
    if device == "cpu":
        return record.environment() | {"GOMP_SPINCOUNT": WORKER_SPINS}
    return dict(os.environ, LD_LIBRARY_PATH=torch_says("pathlib.Path(torch.__file__).parent / 'lib'"))


class Runner:
    """Runs programs within `total_s` seconds; says what was left out, and why."""

    def __init__(self, total_s: float) -> None:
        self.total_s, self.began = total_s, time.monotonic()

    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    def left_out(self, what: str, why: str) -> None:
        """Shows what is missing."""
        print(f"left out: {what}: {why.strip()}", flush=True)

    def run(self, what: str, command: list[str], environment: dict[str, str], limit: float) -> list[dict]:
        """The lines of JSON a program printed, whether or not it came to its end."""
        limit = min(limit, self.total_s - self.elapsed())
        if limit <= 0:
            self.left_out(what, f"{self.total_s:.0f} s are over")
            return []
        # A session of its own: whatever the program starts can be ended with it.
        pipe = subprocess.PIPE
        child = subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
        try:
            out, error = child.communicate(timeout=limit)
            error = error if child.returncode else ""
        except subprocess.TimeoutExpired:
            out, error = self.stop(child)[0], f"not done after {limit:.0f} s"
        if error:
            self.left_out(what, error[-1200:])
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]

    def stop(self, child: subprocess.Popen) -> tuple[str, str]:
        """Asks, then kills; what it had said."""
        child.terminate()
        try:
            return child.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            return child.communicate()
