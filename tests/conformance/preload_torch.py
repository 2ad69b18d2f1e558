"""What PyTorch adds to a forked worker: the probes of tests/tests/preload_probes that import torch, executed and forked.

Once with a server for each run, and once with servers that live between runs.
"""

import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).resolve().parents[1] / "tests" / "preload_probes" / "client.py"

if __name__ == "__main__":
    command = [sys.executable, str(CLIENT), sys.executable, "--torch"]
    sys.exit(max(subprocess.run([*command, *more], check=False).returncode for more in ([], ["--warm"])))
