"""Scripts with mistakes get a sentence that names the cause; scripts that do something else while a rank dies go on."""

import subprocess
import sys
import unittest
from pathlib import Path

from supervisor import Supervisor

SMALL = str(Path(__file__).resolve().parent / "script_small.py")
MICRO = str(Path(__file__).resolve().parent / "train_micro.py")


class Mistakes(unittest.TestCase):
    def said(self, mode: str, wanted: str) -> None:
        with Supervisor(SMALL, 1, arguments=[mode]) as supervisor:
            supervisor.run_until(lambda: any(entry[1] == "ended" for entry in supervisor.log))
            self.assertIn(wanted, supervisor.outputs())

    def test_groups_made_outside(self):
        self.said("outside", "process groups were made outside the training function: 0. Make groups and meshes inside it")

    def test_a_value_that_cannot_be_copied(self):
        self.said("value", "State(lock=…) is neither a module, an optimizer nor has it a state_dict, and cannot be pickled")

    def test_a_closure(self):
        self.said("closure", "optimizer.step(closure) is not supported")

    def test_an_unknown_release_runs_without_recovery(self):
        with Supervisor(SMALL, 1, arguments=["release"], environment={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29731", "ENN_TEST_GO": ""}) as supervisor:
            supervisor.finish()
            self.assertRegex(supervisor.outputs(), r"enn: failures restart all workers: torch \S+ was not tried with ENN, which knows 2\.8 to 2\.15")
            self.assertIn("end rank=0 step=40", supervisor.outputs())


class Others(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Supervisor(SMALL, 2, arguments=["plain"]) as supervisor:
            supervisor.finish()
            cls.expected = supervisor.ends()

    def test_an_exception_in_one_rank_ends_that_process_only(self):
        with Supervisor(SMALL, 2, spares=1, arguments=["fails"]) as supervisor:
            supervisor.finish()
            self.assertEqual(supervisor.ends(), self.expected)
            failures = [entry[3] for entry in supervisor.log if entry[1] == "failed"]
            self.assertEqual(failures, ["ValueError: a mistake of the script"])

    def test_a_rank_that_only_computes_is_interrupted(self):
        with Supervisor(SMALL, 2, spares=1, arguments=["python"]) as supervisor:
            supervisor.run_until(lambda: supervisor.all_attached() and (supervisor.root / "computing-10").exists())
            supervisor.kill(1)
            supervisor.run_until(lambda: supervisor.all_ready(1))
            self.assertLess([entry for entry in supervisor.log if entry[1] == "halted"][0][0] - supervisor.killed_at, 0.9)
            supervisor.finish()
            self.assertEqual(supervisor.ends(), self.expected)

    def test_where_nothing_goes_on_each_rank_says_where_it_is(self):
        with Supervisor(SMALL, 2, arguments=["hangs"]) as supervisor:
            supervisor.run_until(lambda: any(entry[1:3] == ("stalled", 0) for entry in supervisor.log))
            stacks = {rank: supervisor.root / "seats" / f"stack-{supervisor.seated(rank).popen.pid}" for rank in (0, 1)}
            supervisor.run_until(lambda: all(stack.exists() for stack in stacks.values()))
            self.assertIn(("stalled", 0, 8, True), [entry[1:] for entry in supervisor.log])
            self.assertRegex(stacks[0].read_text(), r'^Thread \d+ \(idle\): "MainThread"\n    after step 8, waiting for other ranks\n    \w+ \(.*torch/')
            self.assertRegex(stacks[1].read_text(), r"    after step 7, not waiting for other ranks\n    train \(.*script_small.py:\d+\)\n")
            supervisor.finish()
            self.assertFalse(any(stack.exists() for stack in stacks.values()))
            self.assertEqual(supervisor.ends(), self.expected)

    def test_a_checkpoint_is_not_interrupted(self):
        with Supervisor(SMALL, 2, spares=1, arguments=["checkpoint"]) as supervisor:
            supervisor.run_until(lambda: supervisor.all_attached() and (supervisor.root / "begun-10-0").exists())
            survivor = supervisor.seated(0).popen.pid
            supervisor.kill(1)
            supervisor.run_until(lambda: supervisor.all_ready(1))
            self.assertIn(str(survivor), (supervisor.root / "ended-10-0").read_text())
            # The supervisor is told at once where the rank stands.
            self.assertLess([entry for entry in supervisor.log if entry[1] == "halted"][0][0] - supervisor.killed_at, 0.5)
            supervisor.finish()
            self.assertEqual(supervisor.ends(), self.expected)


class Parts(unittest.TestCase):
    def test_workers_and_spares_say_into_how_many_parts_a_step_is_cut(self):
        with Supervisor(MICRO, 2, spares=1) as supervisor:
            supervisor.finish()
            said = [entry[2:] for entry in supervisor.log if entry[1] == "parts"]
            self.assertEqual(sorted(said, key=str), [(0, 2), (1, 2), (None, 2)])

    def test_a_worker_that_is_parked_ends_without_going_on_behind_its_training_function(self):
        with Supervisor(SMALL, 2, arguments=["plain"]) as supervisor:
            supervisor.run_until(lambda: supervisor.all_attached() and supervisor.all_ready(0) and supervisor.seated(1).step >= 5)
            supervisor._maybe_seat = lambda: None
            supervisor.end_round("a test")
            parked = supervisor.seated(1)
            supervisor.run_until(lambda: parked.halted is not None)
            supervisor._send(parked, "parked")
            supervisor._send(parked, "stop")
            self.assertEqual(parked.popen.wait(20), 0)
            self.assertEqual(supervisor.ends(), [])


class Import(unittest.TestCase):
    def test_importing_enn_imports_neither_torch_nor_numpy(self):
        code = "import sys, enn; sys.exit(any(name in sys.modules for name in ('torch', 'numpy')))"
        self.assertEqual(subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent.parent, check=False).returncode, 0)


if __name__ == "__main__":
    unittest.main()
