"""Kills on GPUs, while Python runs ahead of the device: the bits at the end are those of an undisturbed run.

    python tests/recovery_cuda.py MODE [WORLD] [KILLS] [key=value …]       on WORLD GPUs, or fewer that are shared

MODE is `wait`, `guard`, `unsafe_wait` or `unsafe_guard` (without either, the bits must differ), or `exit` (KILLS undisturbed runs, whose
processes must end with code 0), or `expect` (an undisturbed run). Arguments key=value go to train_cuda.py.
"""

import os
import random
import sys
from pathlib import Path

import torch

from supervisor import Supervisor

SCRIPT = str(Path(__file__).resolve().parent / "train_cuda.py")
# The order of sums does not depend on how a communicator was made.
REPEATABLE = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_SOCKET_IFNAME": "lo"}
MODES = {
    "wait": [],
    "guard": ["ahead=1"],
    "unsafe_wait": ["unsafe=1"],
    "unsafe_guard": ["ahead=1", "unsafe=1"],
}


def undisturbed(world: int, arguments: list[str]) -> list[str]:
    with Supervisor(SCRIPT, world, environment=REPEATABLE, arguments=arguments) as supervisor:
        try:
            supervisor.finish(float(os.environ.get("ENN_WAIT", "60")))
        except (AssertionError, TimeoutError) as error:
            print(f"  {supervisor.codes} {str(error)[-2500:]}", flush=True)
        return supervisor.ends()


def disturbed(world: int, kills: int, arguments: list[str], seed: int) -> tuple[list[str], list[float]]:
    rng = random.Random(seed)
    seats = [rng.randrange(world) for _ in range(kills)]
    seconds = []
    with Supervisor(SCRIPT, world, environment=REPEATABLE, arguments=arguments, spares_of=seats) as supervisor:
        supervisor.run_until(lambda: supervisor.all_attached(), 120)
        for number, seat in enumerate(seats):
            supervisor.run_until(lambda: supervisor.all_ready(number), 60)
            supervisor.kill_at(seat, supervisor.seated(seat).step + 15, pause=rng.random() * 0.05)
            seconds.append(supervisor.seconds_to_the_next_step())
            print(f"  kill {number} of rank {seat}: {seconds[-1]:.3f} s to the next step", flush=True)
        supervisor.finish(float(os.environ.get("ENN_WAIT", "60")))
        if os.environ.get("ENN_TEST_LOG"):
            print(supervisor.outputs()[-3000:], supervisor.log[-100:])
        return supervisor.ends(), seconds


def expected_of(world: int, arguments: list[str]) -> list[str]:
    """Returns the ends of an undisturbed run, which several tests at a time may share by a file."""
    path = os.environ.get("ENN_TEST_EXPECTED")
    if path is not None and os.path.exists(path):
        return Path(path).read_text().splitlines()
    ends = undisturbed(world, [*arguments, "ahead=0", "unsafe=0"])
    if path is not None:
        Path(path).write_text("\n".join(ends))
    return ends


def exits(world: int, times: int) -> int:
    found = [undisturbed(world, ["steps=20"]) for _ in range(times)]
    print(f"exit: {sum(len(ends) == world for ends in found)} of {times} runs have all ends", flush=True)
    return 0


def main() -> int:
    mode = sys.argv[1]
    world = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    kills = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    if mode == "exit":
        return exits(world, kills)
    # Reports of progress come ten times a second.
    arguments = [f"steps={100 + 60 * kills}", f"shared={int(world > torch.cuda.device_count())}", *sys.argv[4:]]
    if mode == "expect":
        print(*expected_of(world, arguments), sep="\n")
        return 0
    found, seconds = disturbed(world, kills, [*arguments, *MODES[mode]], seed=kills)
    expected = expected_of(world, arguments)
    is_equal = found == expected
    print(f"{mode}: {kills} kills on {world}: bits {'equal' if is_equal else 'DIFFERENT'}", *found, sep="\n  ")
    ordered = sorted(seconds)
    print(f"  kill to next step: median {ordered[len(ordered) // 2]:.3f} s, worst {ordered[-1]:.3f} s", flush=True)
    return int(is_equal == mode.startswith("unsafe"))


if __name__ == "__main__":
    sys.exit(main())
