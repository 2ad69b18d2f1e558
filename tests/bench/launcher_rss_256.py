"""launcher_rss_256: resident memory of the launcher's own processes with 256 workers, in MB; below 50 MB.

The workers are `sleep`. Ours is the sum over all processes of `enn` (the launcher and its guard), counted in full although they
share pages. Peer: torchrun 2.11, which is one process besides the workers.
"""

import pathlib
import sys
import tempfile

import _launchers as launchers
import _record as record

WORKERS = 256
MEGABYTES_MAX = 50.0
ROUNDS = 3


def resident(pid: int) -> float:
    """Megabytes."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    [kilobytes] = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(kilobytes) / 1000


def children(pid: int) -> list[int]:
    """Processes that any thread of `pid` started."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def megabytes(who: str, runs: pathlib.Path) -> float:
    """Of one launch once all workers have spoken."""
    program = runs / "program.sh"
    program.write_text("#!/bin/sh\necho here\nexec sleep 1000\n")
    program.chmod(0o755)
    launch = launchers.Launch(who, ["--nproc-per-node", str(WORKERS), "--no-python", str(program)], runs)
    launch.until(lambda lines: len(lines) >= WORKERS)
    own = pathlib.Path(f"/proc/{launch.child.pid}/exe").resolve()
    family = [launch.child.pid, *(pid for pid in children(launch.child.pid) if pathlib.Path(f"/proc/{pid}/exe").resolve() == own)]
    total = sum(resident(pid) for pid in family)
    launch.stop()
    return total


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs = pathlib.Path(folder)
        ours, peer = record.alternate(ROUNDS, lambda: megabytes("enn", runs), lambda: megabytes("torchrun", runs))
    passed = record.record("launcher_rss_256", "MB", "lower", ours, peer, "torchrun 2.11", 1.0)
    if sorted(ours)[len(ours) // 2] >= MEGABYTES_MAX:
        sys.exit(f"launcher_rss_256: not below {MEGABYTES_MAX} MB")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
