"""The two launchers of the launch benches, `enn run` and torchrun 2.11, on the same command lines, and their lines of output."""

import os
import pathlib
import selectors
import signal
import subprocess
import sys
import time

import _record as record

WAIT_SECONDS_MAX = 120


def python() -> str:
    """A Python with torch 2.11."""
    return os.environ.get("ENN_PYTHON") or sys.exit("set ENN_PYTHON to a Python with torch 2.11 (make conformance builds one)")


class Launch:
    """A running launcher whose output is read line by line, each with the time it came."""

    def __init__(self, who: str, args: list[str], runs: pathlib.Path) -> None:
        command = [record.binary("enn"), "run"] if who == "enn" else [python(), "-m", "torch.distributed.run"]
        environment = dict(record.peer_environment(), ENN_RUNS=str(runs), OMP_NUM_THREADS="1")
        self.begun = time.time()
        self.child = subprocess.Popen([*command, "--standalone", *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                      env=environment, cwd=runs)
        self.lines: list[tuple[float, str]] = []
        self.rest = b""
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.child.stdout, selectors.EVENT_READ)

    def until(self, enough) -> float:
        """Reads until `enough(lines)`; the time the last line came."""
        deadline = time.time() + WAIT_SECONDS_MAX
        while not enough(self.lines):
            if not self.selector.select(max(0, deadline - time.time())):
                sys.exit(f"{self.child.args}: nothing within {WAIT_SECONDS_MAX} s after {len(self.lines)} lines")
            block = os.read(self.child.stdout.fileno(), 65536)
            now = time.time()
            if not block:
                sys.exit(f"{self.child.args}: ended early with {self.child.wait()} after {self.lines}")
            *whole, self.rest = (self.rest + block).split(b"\n")
            self.lines += [(now, line.decode()) for line in whole]
        return self.lines[-1][0]

    def stop(self) -> None:
        """Ends it; it ends its workers."""
        self.child.send_signal(signal.SIGTERM)
        try:
            self.child.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self.child.kill()
            sys.exit(f"{self.child.args}: did not end within 60 s after SIGTERM")
