"""Two runs that live at once and never work together: one stands still (SIGSTOP) while the other works for a short slice, in turn, so
that whatever else the machine does meets both. A slice is cut at ends of steps, which the runs tell in their pages; slices in which an
epoch ended are left out.
"""

import dataclasses
import os
import signal
import time

import _watched as watched

# After SIGCONT, until caches are what they were.
SETTLE_S = 0.05
LOOK_S = 0.0003
WARM_UP = 5


def processor_ns(pid: int) -> int:
    """Processor time of all threads, the dead ones too; the clock of another process, see clock_getcpuclockid(3)."""
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        return 0


@dataclasses.dataclass(frozen=True)
class Slice:
    """What a step cost in it, milliseconds."""

    processor_ms: float
    wall_ms: float


class Arm:
    """A run that works in slices of `seconds`."""

    def __init__(self, run: watched.Run, workers: int, seconds: float) -> None:
        self.run, self.seconds = run, seconds
        run.until(lambda: len(run.at_work()) == workers and (not isinstance(run, watched.Enn) or run.warm()), "all at work")
        self.everybody = watched.below(run.child.pid)
        self.page = run.at_work()[0]
        self.send(signal.SIGSTOP)

    def send(self, number: int) -> None:
        for pid in self.everybody:
            os.kill(pid, number)

    def boundary(self) -> tuple[int, float, int]:
        """At the end of a step: its number, the time, and the processor time of launcher, workers and spares."""
        before = self.page.step()
        while True:
            now = time.monotonic()
            self.page.read(now)
            if self.page.step() != before:
                return self.page.step(), now, sum(map(processor_ns, self.everybody))
            time.sleep(LOOK_S)

    def slice(self, epoch: int) -> Slice | None:
        """Works for a slice; none when an epoch of `epoch` steps ended in it."""
        self.send(signal.SIGCONT)
        time.sleep(SETTLE_S)
        self.page.read(time.monotonic())
        step, at, worked = self.boundary()
        time.sleep(self.seconds)
        self.page.read(time.monotonic())
        last, end, worked_last = self.boundary()
        self.send(signal.SIGSTOP)
        if step // epoch != last // epoch:
            return None
        return Slice((worked_last - worked) / 1e6 / (last - step), 1000 * (end - at) / (last - step))


def pairs(arms: tuple[Arm, Arm], epoch: int, count: int) -> list[tuple[Slice, Slice]]:
    """Neighbouring slices of the two, `count` of them and fewer where epochs ended."""
    found = []
    for number in range(count + WARM_UP):
        # Who begins takes turns as well.
        order = arms if number % 2 else arms[::-1]
        both = {arm: arm.slice(epoch) for arm in order}
        if number >= WARM_UP and all(both.values()):
            found.append((both[arms[0]], both[arms[1]]))
    # What is to end must be able to.
    for arm in arms:
        arm.send(signal.SIGCONT)
    return found
