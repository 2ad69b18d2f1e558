"""launch_first_line_{2,8,64}: from the exec of the launcher to the first line of the last of n workers.

The workers are `/bin/echo`; the launcher's own time is all there is. Peer: torchrun 2.11 with the same flags. Limit: 50 times faster.
"""

import pathlib
import sys
import tempfile

import _launchers as launchers
import _record as record

LIMIT = 50.0
ROUNDS = 5


def seconds(who: str, workers: int, runs: pathlib.Path) -> float:
    """One launch, until the last worker's line was read."""
    launch = launchers.Launch(who, ["--nproc-per-node", str(workers), "--no-python", "/bin/echo", "here"], runs)
    last = launch.until(lambda lines: len(lines) >= workers)
    launch.child.communicate(timeout=60)
    if launch.child.returncode != 0:
        sys.exit(f"{who} with {workers} workers ended with {launch.child.returncode}")
    return last - launch.begun


def main() -> None:
    passed = True
    with tempfile.TemporaryDirectory() as folder:
        runs = pathlib.Path(folder)
        seconds("enn", 2, runs)
        seconds("torchrun", 2, runs)
        for workers in (2, 8, 64):
            ours, peer = record.alternate(ROUNDS, lambda: seconds("enn", workers, runs), lambda: seconds("torchrun", workers, runs))
            name = f"launch_first_line_{workers}"
            passed &= record.record(name, "s", "lower", ours, peer, "torchrun 2.11", LIMIT)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
