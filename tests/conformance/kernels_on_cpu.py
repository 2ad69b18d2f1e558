"""The own CUDA kernels give what torch gives, their sources compiled for the CPU: worker/tests/gpu/cuda/on_cpu/check.py, on all cores."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

CHECK = pathlib.Path(__file__).resolve().parents[2] / "worker" / "tests" / "gpu" / "cuda" / "on_cpu" / "check.py"


def main() -> None:
    """As many processes as there are cores, each with some of the checks; what they said, and whether all of them ended well."""
    if not shutil.which("g++"):
        sys.exit(f"error: g++ was not found, expected on PATH: {CHECK.name} compiles the kernels with it\nhint: apt-get install g++")
    names = re.findall(r"^def check_(\w+)\(", CHECK.read_text(), re.MULTILINE)
    if not names:
        sys.exit(f"error: no check was found in {CHECK}, expected functions called check_NAME")
    shares = [share for share in (names[first :: os.cpu_count()] for first in range(os.cpu_count())) if share]
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    begun = [subprocess.Popen([sys.executable, str(CHECK), *share], env=environment) for share in shares]
    failed = [" ".join(share) for share, process in zip(shares, begun) if process.wait() != 0]
    if failed:
        sys.exit(f"error: not right, in one of each: {'; '.join(failed)}")
    print(f"{len(names)} kinds of kernels are right")


if __name__ == "__main__":
    main()
