"""The examples end with the same line whether a worker is killed or not, and under torchrun."""

import os
import subprocess
import sys
import unittest
from pathlib import Path

from supervisor import PYTHON_PATH, Supervisor

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def last_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("trained: ")]


class Examples(unittest.TestCase):
    def check(self, example: str, arguments: list[str], step: int) -> None:
        """Holds that the example ends alike under torchrun, and with a worker killed when it has done so many steps."""
        script = str(EXAMPLES / example / "train.py")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script, *arguments]
        environment = os.environ | {"PYTHONPATH": PYTHON_PATH, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        torchrun = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
        expected = last_lines(torchrun.stdout)
        self.assertEqual(len(expected), 1, torchrun.stderr)
        arguments = [*arguments, "--slow=0.02"]
        with Supervisor(script, 2, spares=1, arguments=arguments, environment={"CUDA_VISIBLE_DEVICES": ""}) as supervisor:
            supervisor.run_until(lambda: supervisor.all_attached() and supervisor.all_ready(0) and supervisor.seated(1).step >= step)
            supervisor.kill(1)
            supervisor.run_until(lambda: supervisor.all_ready(1))
            supervisor.finish(300)
            self.assertEqual(last_lines(supervisor.outputs()), expected)

    def test_fsdp2(self):
        self.check("fsdp2", ["--steps=80"], 45)

    def test_ddp(self):
        self.check("ddp", ["--epochs=3"], 10)


if __name__ == "__main__":
    unittest.main()
