"""What PyTorch adds to a forked worker: the probes of tests/tests/preload_probes that import torch, executed and forked."""

import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).resolve().parents[1] / "tests" / "preload_probes" / "client.py"

if __name__ == "__main__":
    sys.exit(subprocess.run([sys.executable, str(CLIENT), sys.executable, "--torch"], check=False).returncode)
