"""Runs every check of this folder with the Python that has PyTorch; one line each, the output of those that fail.

A check is a file `NAME.py` that exits 0 when all is well. It finds the built binaries in $ENN_BIN_DIR. Names given on the
command line select checks. After the second $ENN_CHECKS_UNTIL (of `date +%s`) no check begins: those are named and count as passed.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# How a check says that a test failed and is tried again; see _enn_torchrun.py.
AGAIN = "  again "
CHECK_SECONDS_MAX = 600


def run(path):
    begun = time.monotonic()
    try:
        done = subprocess.run([sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=CHECK_SECONDS_MAX, cwd=HERE.parents[1])
        ok, output = done.returncode == 0, done.stdout
    except subprocess.TimeoutExpired as error:
        ok, output = False, f"{error.stdout or ''}\ndid not end within {CHECK_SECONDS_MAX} s"
    note_second_tries(path.stem, output)
    print(f"{'PASS' if ok else 'FAIL'} [{time.monotonic() - begun:7.3f}s] conformance {path.stem}", flush=True)
    if not ok or os.environ.get("ENN_VERBOSE"):
        print(output)
    return ok


def leave(path):
    print(f"LEFT OUT, the time is over: conformance {path.stem}", flush=True)
    return True


def note_second_tries(check, output):
    """Shows which tests of a check were tried again, and adds them to the file $ENN_SECOND_TRIES."""
    told = (line.removeprefix(AGAIN).split(",")[0] for line in output.splitlines() if line.startswith(AGAIN))
    lines = [f"conformance {check} {name}" for name in dict.fromkeys(told)]
    for line in lines:
        print(f"AGAIN {line}", flush=True)
    if lines and os.environ.get("ENN_SECOND_TRIES"):
        with open(os.environ["ENN_SECOND_TRIES"], "a") as file:
            file.writelines(f"{line}\n" for line in lines)


def main():
    names = set(sys.argv[1:])
    checks = [path for path in sorted(HERE.glob("*.py")) if path.name != "run.py" and not path.name.startswith("_")]
    unknown = names - {path.stem for path in checks}
    if unknown:
        sys.exit(f"error: no check is called {', '.join(sorted(unknown))}\nhint: there are {', '.join(path.stem for path in checks)}")
    chosen = [path for path in checks if not names or path.stem in names]
    until = float(os.environ.get("ENN_CHECKS_UNTIL") or "inf")
    passed = sum(run(path) if time.time() < until else leave(path) for path in chosen)
    print(f"Conformance: {len(chosen)} checks run: {passed} passed, {len(chosen) - passed} failed", flush=True)
    sys.exit(0 if passed == len(chosen) and chosen else 1)


if __name__ == "__main__":
    main()
