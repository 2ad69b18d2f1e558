"""restart_after_kill: from kill -9 of one worker to the first line of its replacement, in milliseconds; below 100 ms.
detect_kill: from the kill to the launcher's event worker_exited, in milliseconds; below 50 ms.

The workers are a shell that says its rank and becomes `sleep`. Peer of the restart: torchrun 2.11; torchrun tells nobody when it
detects a death, so detect_kill stands beside its limit.
"""

import json
import os
import pathlib
import signal
import sys
import tempfile
import time

import _launchers as launchers
import _record as record

KILLS = 8
WORKERS = 2
RESTART_MS_MAX = 100.0
DETECT_MS_MAX = 50.0
PROGRAM = '#!/bin/sh\necho "$RANK $$"\nexec sleep 1000\n'


class Victims:
    """A launcher whose worker of rank 1 is killed again and again."""

    def __init__(self, who: str, folder: pathlib.Path) -> None:
        program = folder / "program.sh"
        program.write_text(PROGRAM)
        program.chmod(0o755)
        more = ["--retry-early"] if who == "enn" else []
        flags = ["--nproc-per-node", str(WORKERS), "--max-restarts", str(2 * KILLS), *more, "--no-python", str(program)]
        self.launch = launchers.Launch(who, flags, folder)
        self.kills: list[tuple[float, int]] = []
        self.wait()

    def wait(self) -> None:
        """Until the workers of a round have spoken."""
        wanted = len(self.launch.lines) + WORKERS
        self.launch.until(lambda lines: len(lines) >= wanted)

    def kill(self) -> float:
        """Milliseconds from the kill to the replacement's first line."""
        fresh = self.launch.lines[-WORKERS:]
        [pid] = [int(line.split()[1]) for _, line in fresh if line.split()[0] == "1"]
        # The other worker may still be on its way from the shell to `sleep`.
        time.sleep(0.2)
        killed = time.time()
        os.kill(pid, signal.SIGKILL)
        self.wait()
        self.kills.append((killed, pid))
        [again] = [now for now, line in self.launch.lines[-WORKERS:] if line.split()[0] == "1"]
        return 1000 * (again - killed)


def detected(victims: Victims, folder: pathlib.Path) -> list[float]:
    """Milliseconds from each kill to its event in the journal."""
    [journal] = folder.glob("*/events.jsonl")
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    exits = {event["pid"]: event["time"] for event in events if event["event"] == "worker_exited" and event["signal"] == 9}
    return [1000 * (exits[pid] - killed) for killed, pid in victims.kills]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder)
        (base / "enn").mkdir()
        (base / "torchrun").mkdir()
        ours, peer = Victims("enn", base / "enn"), Victims("torchrun", base / "torchrun")
        restarts, theirs = record.alternate(KILLS, ours.kill, peer.kill)
        notices = detected(ours, base / "enn")
        ours.launch.stop()
        peer.launch.stop()
    passed = record.record("restart_after_kill", "ms", "lower", restarts, theirs, "torchrun 2.11", 1.0)
    passed &= record.record("detect_kill", "ms", "lower", notices, [DETECT_MS_MAX], "the limit", 1.0)
    if sorted(restarts)[len(restarts) // 2] >= RESTART_MS_MAX:
        sys.exit(f"restart_after_kill: not below {RESTART_MS_MAX} ms")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
