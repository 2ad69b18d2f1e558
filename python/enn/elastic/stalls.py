"""What the training thread is doing while no step is done, written by the control thread for the report of a hang.

The node agent finds the stack in the folder of the seats. It has the form in which py-spy prints stacks.
"""

import os
import sys
import threading
import time
import traceback
from pathlib import Path

# Time without a step after which the stack is written, and after which it is written again.
STALL_SECONDS = 2.0
STACK_BYTES_MAX = 16 << 10
# Where a thread is that waits for other ranks: collectives and groups, backward passes with DDP's sums, and the waits of this package.
_WAITING_FILES = (
    "torch/distributed/",
    "torch/nn/parallel/distributed.py",
    "torch/autograd/graph.py",
    "enn/elastic/steps.py",
    "enn/elastic/round_store.py",
    "enn/elastic/groups.py",
)


class StallWatch:
    """Looks at the main thread when the step has stood still. `path` is where the stack is written; `None` writes none."""

    def __init__(self):
        self.path: Path | None = None
        self.is_waiting = False
        self._seen = None
        self._next_look = 0.0
        self._is_written = False

    def look(self, round_number: int, step: int) -> bool:
        """Called again and again; returns whether `is_waiting` has changed: the thread waits for other ranks, or does something else."""
        now = time.monotonic()
        if self._seen != (round_number, step):
            self._seen = (round_number, step)
            self._next_look = now + STALL_SECONDS
            # A step is told without it.
            self.is_waiting = False
            self._remove()
            return False
        if now < self._next_look:
            return False
        self._next_look = now + STALL_SECONDS
        frames = traceback.extract_stack(sys._current_frames().get(threading.main_thread().ident))[::-1]
        was_waiting = self.is_waiting
        self.is_waiting = any(part in frame.filename for frame in frames[:2] for part in _WAITING_FILES)
        self._write(frames, step)
        return self.is_waiting != was_waiting

    def _write(self, frames: list[traceback.FrameSummary], step: int) -> None:
        if self.path is None:
            return
        place = f"after step {step}, " + ("waiting for other ranks" if self.is_waiting else "not waiting for other ranks")
        lines = [f'Thread {os.getpid()} (idle): "MainThread"', f"    {place}"]
        lines += [f"    {frame.name} ({frame.filename}:{frame.lineno})" for frame in frames]
        written = self.path.with_suffix(".part")
        try:
            written.write_bytes("\n".join(lines).encode()[:STACK_BYTES_MAX] + b"\n")
            written.replace(self.path)
            self._is_written = True
        except OSError:
            # The report has what the tools of the node agent see.
            pass

    def _remove(self) -> None:
        if self._is_written:
            self._is_written = False
            self.path.unlink(missing_ok=True)
