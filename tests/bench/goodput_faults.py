"""goodput_faults: the part of the undisturbed pace that is left with one kill -9 a minute; at least 0.95. Measured with a kill
every 6 s: what a fault costs, in seconds of training, follows, and a minute holds one of them. The accelerated figure is told beside.

Two CPU workers; ours has one spare; both write a checkpoint at the end of each epoch. Peer: torchrun 2.11 with the same
kills at the same times. Needs ENN_PYTHON.
"""

import dataclasses
import random
import statistics
import sys

import _record as record
import _watched as watched

ROUNDS = 1
WINDOW_S = 60.0
EVERY_S = 6.0
FAULT_EVERY_S = 60.0
LIMIT = 0.95


@dataclasses.dataclass
class Window:
    """A window of training: the pace before it, steps that stand at its end, kills."""

    pace: float
    done: int
    kills: int

    def goodput(self) -> float:
        return self.done / (WINDOW_S * self.pace)

    def fault_s(self) -> float:
        """Seconds of training that one kill costs."""
        return WINDOW_S * (1 - self.goodput()) / max(1, self.kills)


def window(run: watched.Run, seed: int) -> Window:
    """Half a window without kills before, one with kills, half a window without after: the pace is that of both halves."""
    rng = random.Random(seed)
    run.wait_prepared()
    calm_steps, calm_s = calm(run)
    first, begin, kills = run.step(), run.look(), 0
    for number in range(int(WINDOW_S / EVERY_S)):
        at, victim = begin + (number + rng.uniform(0.2, 0.8)) * EVERY_S, rng.randrange(watched.WORKERS)
        run.rest(max(0.0, at - run.look()))
        # Those who are still on their way from the kill before are spared: it is that kill's cost.
        if len(run.at_work()) == watched.WORKERS:
            run.kill(victim)
            kills += 1
    run.rest(max(0.0, begin + WINDOW_S - run.look()))
    done = run.step() - first
    run.wait_prepared()
    after_steps, after_s = calm(run)
    found = Window((calm_steps + after_steps) / (calm_s + after_s), done, kills)
    print(f"{run.name}: {found}, goodput {found.goodput():.3f}, a fault costs {found.fault_s():.2f} s", flush=True)
    return found


def calm(run: watched.Run) -> tuple[int, float]:
    """Steps and seconds of half a window."""
    begin, first = run.look(), run.step()
    run.rest(WINDOW_S / 2)
    return run.step() - first, run.look() - begin


def main() -> None:
    load = watched.load()
    ours, peer = [], []
    restarts = str(int(10 * WINDOW_S / EVERY_S))
    with watched.Folder() as folder:
        for seed in range(ROUNDS):
            flags = ["--spares", "1", "--max-restarts", restarts]
            with watched.Enn(folder.config, folder.fresh("enn"), *flags) as run:
                ours.append(window(run, seed))
                staged = run.staged()
            with watched.Torchrun(folder.config, staged, folder.fresh("torchrun"), int(restarts)) as run:
                run.wait_snapshot()
                peer.append(window(run, seed))
    a_minute = lambda windows: [1 - found.fault_s() / FAULT_EVERY_S for found in windows]
    more = {
        "fault_costs_s": [statistics.median(found.fault_s() for found in windows) for windows in (ours, peer)],
        f"goodput_at_a_kill_every_{EVERY_S:.0f}_s": [statistics.median(found.goodput() for found in windows) for windows in (ours, peer)],
        "windows": [[dataclasses.asdict(found) for found in windows] for windows in (ours, peer)],
        "load": [load, watched.load()],
    }
    peer_name = "torchrun 2.11, a snapshot an epoch"
    passed = record.record("goodput_faults", "of the pace", "higher", a_minute(ours), a_minute(peer), peer_name, 1.0, more)
    goodput = statistics.median(a_minute(ours))
    if goodput < LIMIT:
        sys.exit(f"goodput_faults: {goodput:.3f} of the pace is left with a fault a minute, at least {LIMIT} is asked for")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
