"""Workers are killed, stopped and disturbed; at the end the bits are those of an undisturbed run."""

import os
import random
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from supervisor import PYTHON_PATH, Supervisor

HERE = Path(__file__).resolve().parent
DDP = str(HERE / "train_ddp.py")
# Number of seeded schedules of faults.
SCHEDULES = int(os.environ.get("ENN_TEST_SCHEDULES", "3"))


def undisturbed(*arguments: str) -> list[str]:
    with Supervisor(DDP, 2, arguments=arguments) as supervisor:
        supervisor.finish()
        return supervisor.ends()


class Recovery(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.expected = undisturbed("ms=0")
        assert len(cls.expected) == 2, cls.expected

    def test_a_spare_takes_the_seat_and_the_bits_are_the_same(self):
        with Supervisor(DDP, 2, spares=2, arguments=["ms=5"]) as supervisor:
            supervisor.run_until(supervisor.all_attached)
            supervisor.kill_at(rank=1, step=7)
            supervisor.run_until(lambda: supervisor.seated(0).step > 20)
            print(f"kill to the next step of all: {supervisor.seconds_to_the_next_step():.3f} s", file=sys.stderr)
            supervisor.kill_at(rank=0, step=30)
            supervisor.finish()
            self.assertEqual(supervisor.ends(), self.expected)

    def test_without_a_spare_a_new_process_takes_the_seat(self):
        with Supervisor(DDP, 2, arguments=["ms=5"]) as supervisor:
            supervisor.kill_at(rank=0, step=5)
            supervisor.finish()
            self.assertEqual(supervisor.ends(), self.expected)

    def test_loaders_that_live_on_are_rewound(self):
        with Supervisor(DDP, 2, spares=1, arguments=["ms=5", "persistent=1"]) as supervisor:
            supervisor.run_until(supervisor.all_attached)
            supervisor.kill_at(rank=1, step=20)
            supervisor.finish()
            self.assertEqual(supervisor.ends(), self.expected)

    def test_code_that_swallows_exceptions_recovers(self):
        with Supervisor(DDP, 2, spares=2, arguments=["ms=2", "except=1"]) as supervisor:
            supervisor.run_until(supervisor.all_attached)
            for step in (6, 25):
                supervisor.kill_at(rank=1, step=step)
            supervisor.finish()
            self.assertEqual(supervisor.ends(), self.expected)

    def test_wrong_gradients_are_not_applied(self):
        for seed in range(2):
            with Supervisor(DDP, 2, spares=2, arguments=["except=2"]) as supervisor:
                supervisor.run_until(supervisor.all_attached)
                for step in (5 + seed, 20 + seed):
                    supervisor.kill_at(rank=seed % 2, step=step)
                supervisor.finish()
                self.assertEqual(supervisor.ends(), self.expected)

    def test_without_the_look_wrong_gradients_are_applied(self):
        with Supervisor(DDP, 2, spares=1, arguments=["except=2", "unsafe=1"]) as supervisor:
            supervisor.run_until(lambda: supervisor.all_attached() and supervisor.all_ready(0) and supervisor.seated(0).step >= 5)
            # The survivor comes to the sums of its backward pass, swallows their error, and steps before it hears of the failure.
            supervisor.kill(1, signal.SIGSTOP)
            stand_still(supervisor, 0)
            marks = supervisor.marks(0)
            supervisor.may_tell = lambda: supervisor.marks(0) > marks
            supervisor.kill(1)
            supervisor.finish()
            self.assertNotEqual(supervisor.ends(), self.expected)

    def test_the_only_rank_with_the_state_dies_while_it_gives_it(self):
        first = {"id": "first", "place": "step", "rank": 1, "step": 5, "round": 0, "action": "kill"}
        second = {"id": "second", "place": "sending", "rank": 0, "step": 5, "round": 1, "action": "kill"}
        with Supervisor(DDP, 2, spares=1, arguments=["ms=5"], orders=[first, second]) as supervisor:
            supervisor.finish()
            self.assertTrue((supervisor.root / "done-second").exists())
            self.assertEqual(supervisor.ends(), self.expected)

    def test_seeded_schedules_of_faults(self):
        for seed in range(SCHEDULES):
            with self.subTest(seed=seed), Supervisor(DDP, 2, spares=3, arguments=[f"ms={seed % 3 * 3}"]) as supervisor:
                supervisor.run_until(supervisor.all_attached)
                disturb(supervisor, random.Random(seed))
                supervisor.finish()
                self.assertEqual(supervisor.ends(), self.expected, supervisor.log)

    def test_a_stop_ends_all_ranks_after_the_same_step(self):
        with Supervisor(DDP, 2, arguments=["ms=10"]) as supervisor:
            supervisor.run_until(lambda: supervisor.all_ready(0) and supervisor.seated(0).step > 3)
            supervisor.stop()
            supervisor.finish()
            steps = {line.split()[2] for line in supervisor.ends()}
            self.assertTrue(all(line.startswith("stopped") for line in supervisor.ends()) and len(steps) == 1, supervisor.ends())

    def test_the_same_file_runs_under_torchrun(self):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", DDP]
        self.assertEqual(printed(command), self.expected)

    def test_the_same_file_runs_alone(self):
        ends = printed([sys.executable, DDP, "epochs=1", "loaders=0"])
        self.assertTrue(len(ends) == 1 and ends[0].startswith("end rank=0 step=16 rows=256"), ends)


def disturb(supervisor: Supervisor, rng: random.Random) -> None:
    """Up to three faults at random times: a kill, a worker that stands still, and either of them in the recovery of another."""
    step = 0
    for _ in range(rng.randint(1, 3)):
        step += rng.randint(1, 12)
        supervisor.run_until(lambda: supervisor.codes or (supervisor.all_ready(supervisor.round) and supervisor.seated(0).step >= step))
        again = rng.random() < 0.4
        for _ in range(2 if again else 1):
            pause(supervisor, rng.random() * (0.25 if again else 0.03))
            if supervisor.codes:
                return
            rank = rng.randrange(supervisor.world)
            if rng.random() < 0.25:
                supervisor.kill(rank, signal.SIGSTOP)
                pause(supervisor, 0.1)
                supervisor.end_round(f"rank {rank} does not answer")
                os.kill(supervisor.seated(rank).popen.pid, signal.SIGKILL)
            else:
                supervisor.kill(rank)
        after = supervisor.round + 1
        supervisor.run_until(lambda: supervisor.codes or supervisor.all_ready(after))
        step = max(one.step for one in supervisor.processes)


def pause(supervisor: Supervisor, seconds: float) -> None:
    end = time.monotonic() + seconds
    supervisor.run_until(lambda: time.monotonic() >= end)


def stand_still(supervisor: Supervisor, rank: int) -> None:
    """Waits until a rank does no more steps."""
    marks = -1
    while supervisor.marks(rank) > marks:
        marks = supervisor.marks(rank)
        pause(supervisor, 1)


def printed(command: list[str], environment: dict | None = None) -> list[str]:
    environment = os.environ | (environment or {}) | {"PYTHONPATH": PYTHON_PATH, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    return sorted(line for line in done.stdout.splitlines() if line.startswith("end ")) or [done.stderr]


if __name__ == "__main__":
    unittest.main()
