"""Kills on GPUs, while Python runs ahead of the device: the bits at the end are those of an undisturbed run.

    python tests/recovery_cuda.py [WORLD] [KILLS]       needs WORLD GPUs
"""

import os
import random
import sys
import time
from pathlib import Path

from supervisor import Supervisor

SCRIPT = str(Path(__file__).resolve().parent / "train_cuda.py")
# The order of sums does not depend on how a communicator was made.
REPEATABLE = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def ended(supervisor: Supervisor) -> list[str]:
    supervisor.finish(float(os.environ.get("ENN_WAIT", "60")))
    return supervisor.ends()


def disturbed(world: int, kills: int, arguments: list[str], seed: int) -> list[str]:
    rng = random.Random(seed)
    seats = [rng.randrange(world) for _ in range(kills)]
    with Supervisor(SCRIPT, world, environment=REPEATABLE, arguments=arguments, spares_of=seats) as supervisor:
        supervisor.run_until(lambda: supervisor.all_attached(), 120)
        for number, seat in enumerate(seats):
            supervisor.run_until(lambda: supervisor.all_ready(number), 60)
            step = supervisor.seated(seat).step
            supervisor.run_until(lambda: supervisor.seated(seat).step >= step + 15, 60)
            time.sleep(rng.random() * 0.05)
            supervisor.kill(seat)
            supervisor.run_until(lambda: supervisor.all_ready(number + 1), 60)
            print(f"  rank {seat} killed: {supervisor.seconds_to_the_next_step():.3f} s to the next step", flush=True)
            if os.environ.get("ENN_TEST_LOG"):
                begin = supervisor.killed_at
                print("   ", [(round(entry[0] - begin, 3), *entry[1:]) for entry in supervisor.log if entry[0] > begin - 0.01], flush=True)
        lines = ended(supervisor)
        if os.environ.get("ENN_TEST_LOG"):
            print(supervisor.outputs()[-3000:])
        return lines


def main() -> int:
    world = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    kills = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    arguments = sys.argv[3:]
    with Supervisor(SCRIPT, world, environment=REPEATABLE, arguments=arguments) as supervisor:
        expected = ended(supervisor)
        print("\n".join(line for line in supervisor.outputs().splitlines() if line.startswith(("end", "milli"))), flush=True)
    found = disturbed(world, kills, arguments, seed=1)
    print("\n".join(found))
    print("equal" if found == expected else "DIFFERENT", flush=True)
    return int(found != expected)


if __name__ == "__main__":
    sys.exit(main())
