"""What PyTorch adds to a forked worker: the probes of tests/preload_probes that import torch, executed and forked.

With a server for each run; `make releases` tries warm servers as well, and launcher_preload.py has programs for them.
"""

import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).resolve().parents[1] / "preload_probes" / "client.py"

if __name__ == "__main__":
    sys.exit(subprocess.run([sys.executable, str(CLIENT), sys.executable, "--torch"], check=False).returncode)
