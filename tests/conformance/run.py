"""Runs every check of this folder with the Python that has PyTorch; one line each, the output of those that fail.

A check is a file `NAME.py` that exits 0 when all is well. It finds the built binaries in $ENN_BIN_DIR. Names given on the
command line select checks. Two run at a time, $ENN_CHECKS_AT_ONCE says how many: most of them wait for processes or for each other's
ranks. After the second $ENN_CHECKS_UNTIL (of `date +%s`) no check begins: those are named and count as passed.
"""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# How a check says that a test failed and is tried again; see _enn_torchrun.py.
AGAIN = "  again "
CHECK_SECONDS_MAX = 900
# They hold how long something took, or that processes which import PyTorch meet in time, and have the machine for themselves.
MEASURE = {"launcher_scripts", "launcher_pytorch_agent"}
# They meet at ports that torchrun has by default: one of them at a time.
PORTS = {"group", "launcher_preload", "launcher_pytorch", "launcher_pytorch_agent", "launcher_training", "preload_torch", "store_pytorch"}
# They take longest, and begin first: those of PORTS early enough that the last of them has others beside it.
LONG = ["python_tables", "export_sweep", "launcher_preload", "preload_torch", "kernels_on_cpu", "launcher_pytorch", "export_pt2", "export_run", "export_tf",
        "export_aoti", "ckpt_runs", "launcher_training"]
SHOWN = threading.Lock()


def run(path):
    begun = time.monotonic()
    try:
        done = subprocess.run([sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=CHECK_SECONDS_MAX, cwd=HERE.parents[1])
        ok, output = done.returncode == 0, done.stdout
    except subprocess.TimeoutExpired as error:
        told = error.stdout or b""
        told = told.decode(errors="replace") if isinstance(told, bytes) else told
        ok, output = False, f"{told}\ndid not end within {CHECK_SECONDS_MAX} s"
    with SHOWN:
        note_second_tries(path.stem, output)
        print(f"{'PASS' if ok else 'FAIL'} [{time.monotonic() - begun:7.3f}s] conformance {path.stem}", flush=True)
        if not ok or os.environ.get("ENN_VERBOSE"):
            print(output, flush=True)
    return ok


def leave(path):
    with SHOWN:
        print(f"LEFT OUT, the time is over: conformance {path.stem}", flush=True)
    return True


class Queue:
    """Checks that wait, in the order in which they begin; of those in PORTS one is at work at a time."""

    def __init__(self, paths):
        self.waiting, self.ports_taken, self.changed = list(paths), False, threading.Condition()

    def take(self):
        """The next check that may begin; None when none is left."""
        with self.changed:
            while self.waiting:
                free = [path for path in self.waiting if not (self.ports_taken and path.stem in PORTS)]
                if free:
                    self.waiting.remove(free[0])
                    self.ports_taken |= free[0].stem in PORTS
                    return free[0]
                self.changed.wait()
            return None

    def ended(self, path):
        with self.changed:
            self.ports_taken &= path.stem not in PORTS
            self.changed.notify_all()


def work(queue, until, passed):
    while path := queue.take():
        try:
            if run(path) if time.time() < until else leave(path):
                passed.append(path)
        finally:
            queue.ended(path)


def run_all(chosen, at_once, until):
    """How many pass: those that measure one by one at the end, the others side by side."""
    rank = {name: at for at, name in enumerate(LONG)}
    beside = [path for path in chosen if path.stem not in MEASURE]
    queue, passed = Queue(sorted(beside, key=lambda path: rank.get(path.stem, len(LONG)))), []
    threads = [threading.Thread(target=work, args=(queue, until, passed)) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    work(Queue([path for path in chosen if path.stem in MEASURE]), until, passed)
    return len(passed)


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
    at_once = int(os.environ.get("ENN_CHECKS_AT_ONCE") or min(2, os.cpu_count() or 1))
    passed = run_all(chosen, at_once, until)
    print(f"Conformance: {len(chosen)} checks run: {passed} passed, {len(chosen) - passed} failed", flush=True)
    sys.exit(0 if passed == len(chosen) and chosen else 1)


if __name__ == "__main__":
    main()
