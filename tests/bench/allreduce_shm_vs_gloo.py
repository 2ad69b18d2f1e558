"""allreduce_shm_vs_gloo (64 MiB of a shared tensor, as gradients are), …_private (of any other tensor) and …_4k (latency):
our shared memory against torch.distributed's Gloo on loopback, two ranks, one thread each.

Needs ENN_PYTHON, a Python with torch 2.11. Builds the example allreduce_load of the worker when it is not up to date.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys

import _record as record

RANKS = 2
ROUNDS = int(os.environ.get("ENN_BENCH_ROUNDS", "5"))
SECONDS_MAX = 300
PEER_NAME = "torch.distributed 2.11, Gloo on loopback"
# Name, bytes, all-reduces per round, way, smallest ratio that passes.
CASES = [
    ("allreduce_shm_vs_gloo", 64 << 20, 15, "shared", 5.0),
    ("allreduce_shm_vs_gloo_private", 64 << 20, 15, "private", 1.0),
    ("allreduce_shm_vs_gloo_4k", 4 << 10, 500, "shared", 1.0),
]


def answer(command, environment):
    """What a program prints, as JSON."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def main():
    """Ours and the peer in turn, for each case."""
    python = os.environ.get("ENN_PYTHON") or sys.exit("set ENN_PYTHON to a Python with torch 2.11 (make conformance builds one)")
    build = ["cargo", "build", "--release", "--quiet", "-p", "enn-worker", "--example", "allreduce_load"]
    subprocess.run(build, cwd=record.ROOT, check=True)
    load = record.binary("examples/allreduce_load")
    peer_script = str(pathlib.Path(__file__).with_name("_gloo_all_reduce.py"))
    passed = True
    for name, size, count, way, limit in CASES:
        ceilings = []

        def ours():
            found = answer([load, str(RANKS), str(size), str(count), way], record.environment())
            return statistics.median(found["seconds"]) * 1e3

        def peer():
            found = answer([python, peer_script, str(RANKS), str(size), str(count)], record.peer_environment())
            ceilings.append(statistics.median(found["ceiling"]) * 1e3)
            return statistics.median(found["seconds"]) * 1e3

        a, b = record.alternate(ROUNDS, ours, peer)
        passed &= record.record(name, "ms", "lower", a, b, PEER_NAME, limit)
        mine, ceiling = statistics.median(a), statistics.median(ceilings)
        print(f"{name}: {mine:.3f} ms; one pass over {size} bytes by all ranks at once takes {ceiling:.3f} ms ({mine / ceiling:.2f}x)")
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
