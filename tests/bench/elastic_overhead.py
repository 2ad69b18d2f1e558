"""elastic_overhead: an undisturbed step of two CPU workers under `--policy reform --spares 1` against `--policy restart`, in
processor time of the workers and the launcher; at most 1 % more. The wall clock's answer stands beside it.

One binary, both runs at once but never together: one stands still (SIGSTOP) while the other works for a slice, in turn, so that
whatever else the machine does meets both. Slices begin when the spare is warm; what its start costs is told beside.
"""

import os
import signal
import statistics
import sys
import time

import _record as record
import _watched as watched

SLICES = 40
SLICE_S = 1.5
WARM_UP_SLICES = 2
# Of the ratio: 1 % more time.
LIMIT = 1 / 1.01


def processor_ns(pid: int) -> int:
    """Processor time of all threads, the dead ones too; the clock of another process, see clock_getcpuclockid(3)."""
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        return 0


class Arm:
    """A run that works in slices."""

    def __init__(self, run: watched.Enn) -> None:
        self.run = run
        run.wait_prepared()
        self.workers = {page.pid for page in run.at_work()}
        self.everybody = watched.below(run.child.pid)
        self.spares = [pid for pid in self.everybody if pid in run.pages and pid not in self.workers]
        self.spare_start_s = sum(map(processor_ns, self.spares)) / 1e9
        self.wall_ms: list[float] = []
        self.processor_ms: list[float] = []
        self.spare_ms: list[float] = []
        self.send(signal.SIGSTOP)

    def send(self, number: int) -> None:
        for pid in self.everybody:
            os.kill(pid, number)

    def slice(self, counts: bool) -> None:
        """Works for a slice."""
        self.send(signal.SIGCONT)
        at, step, worked, spared = self.marks()
        time.sleep(SLICE_S)
        end, last, worked_last, spared_last = self.marks()
        self.send(signal.SIGSTOP)
        steps = max(1, last - step)
        if counts:
            self.wall_ms.append(1000 * (end - at) / steps)
            self.processor_ms.append((worked_last - worked) / 1e6 / steps)
            self.spare_ms.append((spared_last - spared) / 1e6 / steps)

    def marks(self) -> tuple[float, int, int, int]:
        """Now, steps done, processor time of workers and launcher, and of spares."""
        now = self.run.look()
        worked = sum(processor_ns(pid) for pid in self.everybody if pid not in self.spares)
        return now, self.run.step(), worked, sum(map(processor_ns, self.spares))


def main() -> None:
    load = watched.load()
    with watched.Folder() as folder:
        reform = watched.Enn(folder.config, folder.fresh("reform"), "--policy", "reform", "--spares", "1")
        with reform, watched.Enn(folder.config, folder.fresh("restart"), "--policy", "restart") as restart:
            arms = [Arm(reform), Arm(restart)]
            for number in range(SLICES + WARM_UP_SLICES):
                # Who begins takes turns as well.
                for arm in arms if number % 2 else reversed(arms):
                    arm.slice(number >= WARM_UP_SLICES)
            # What is to end must be able to.
            for arm in arms:
                arm.send(signal.SIGCONT)
    elastic, plain = arms
    pairs = lambda a, b: statistics.quantiles((x / y - 1 for x, y in zip(a, b, strict=True)), n=4)
    with_spare = [a + b for a, b in zip(elastic.processor_ms, elastic.spare_ms, strict=True)]
    more = {
        "processor_overhead_quartiles": pairs(with_spare, plain.processor_ms),
        "wall_overhead_quartiles": pairs(elastic.wall_ms, plain.wall_ms),
        "wall_ms": [statistics.median(elastic.wall_ms), statistics.median(plain.wall_ms)],
        "waiting_spare_ms_per_step": statistics.median(elastic.spare_ms),
        "spare_start_processor_s": elastic.spare_start_s,
        "slices": [with_spare, plain.processor_ms, elastic.wall_ms, plain.wall_ms],
        "load": [load, watched.load()],
    }
    peer = "enn train --policy restart"
    passed = record.record("elastic_overhead", "ms", "lower", with_spare, plain.processor_ms, peer, LIMIT, more)
    print({name: value for name, value in more.items() if name != "slices"}, flush=True)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
