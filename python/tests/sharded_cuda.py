"""FSDP2 on GPUs: what mirrors cost, kills and how long they last, and all workers killed at once with a checkpoint.

    python tests/sharded_cuda.py [WORLD] [KILLS] [key=value …]       needs WORLD GPUs; the arguments are those of train_sharded_cuda.py
"""

import os
import random
import sys
import tempfile
from pathlib import Path

from recovery_cuda import REPEATABLE
from supervisor import Supervisor

SCRIPT = str(Path(__file__).resolve().parent / "train_sharded_cuda.py")


def ended(supervisor: Supervisor) -> list[str]:
    supervisor.finish(float(os.environ.get("ENN_WAIT", "90")))
    return supervisor.ends()


def lines_of(supervisor: Supervisor, *begins: str) -> None:
    print("\n".join("  " + line for line in supervisor.outputs().splitlines() if line.startswith(begins)), flush=True)


def undisturbed(world: int, arguments: list[str]) -> list[str]:
    with Supervisor(SCRIPT, world, environment=REPEATABLE, arguments=[*arguments, "phase=30"]) as supervisor:
        supervisor.run_until(supervisor.all_attached, 120)
        found = ended(supervisor)
        lines_of(supervisor, "milliseconds")
        return found


def disturbed(world: int, kills: int, arguments: list[str]) -> list[str]:
    rng = random.Random(1)
    seats = [rng.randrange(world) for _ in range(kills)]
    with Supervisor(SCRIPT, world, environment=REPEATABLE, arguments=arguments, spares_of=seats) as supervisor:
        supervisor.run_until(supervisor.all_attached, 120)
        for number, seat in enumerate(seats):
            supervisor.run_until(lambda: supervisor.all_ready(number), 60)
            supervisor.kill_at(seat, supervisor.seated(seat).step + 34, pause=rng.random() * 0.1)
            print(f"  rank {seat} killed: {supervisor.seconds_to_the_next_step():.3f} s to the next step", flush=True)
            begin = supervisor.killed_at
            print("   ", [(round(entry[0] - begin, 3), *entry[1:]) for entry in supervisor.log if entry[0] > begin], flush=True)
        found = ended(supervisor)
        lines_of(supervisor, "times", "enn:")
        return found


def all_killed(world: int, arguments: list[str]) -> list[str]:
    """The folder of seats is lost, too, as with a machine."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        environment = REPEATABLE | {"ENN_TEST_CHECKPOINTS": folder}
        arguments = [*arguments, "checkpoint=20"]
        with Supervisor(SCRIPT, world, environment=environment, arguments=arguments) as supervisor:
            supervisor.run_until(lambda: supervisor.all_attached() and supervisor.seated(0).step > 70, 90)
        with Supervisor(SCRIPT, world, environment=environment, arguments=arguments) as supervisor:
            found = ended(supervisor)
            lines_of(supervisor, "enn:")
            return found


def main() -> int:
    world = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    kills = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    arguments = sys.argv[3:]
    expected = undisturbed(world, arguments)
    found = disturbed(world, kills, arguments)
    print("\n".join(found))
    print("equal" if found == expected else f"DIFFERENT from {expected}", flush=True)
    small = [*arguments, "width=64", "depth=2", "rows=64"]
    with Supervisor(SCRIPT, world, environment=REPEATABLE, arguments=small) as supervisor:
        expected_small = ended(supervisor)
    is_equal = all_killed(world, small) == expected_small
    print("all killed:", "equal" if is_equal else "DIFFERENT", flush=True)
    return int(found != expected or not is_equal)


if __name__ == "__main__":
    sys.exit(main())
