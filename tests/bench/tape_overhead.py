"""tape_overhead: microseconds that recording adds to an operation, above the same operation through tch alone; at most 1.5.
tape_overhead_managed: the same where a manager chooses among kernels that it has checked, as in every worker.

Builds the example tape_overhead of the worker when it is not up to date.
"""

import json
import statistics
import subprocess
import sys

import _record as record

LIMIT_US = 1.5
SECONDS_MAX = 120


def main() -> None:
    """One run: both sides alternate within it."""
    build = ["cargo", "build", "--release", "--quiet", "-p", "enn-worker", "--example", "tape_overhead"]
    subprocess.run(build, cwd=record.ROOT, check=True)
    load = record.binary("examples/tape_overhead")
    done = subprocess.run([load], env=record.environment(), capture_output=True, text=True, check=True, timeout=SECONDS_MAX)
    found = json.loads(done.stdout)
    middle = {key: statistics.median(value) for key, value in found.items() if key.endswith("_us")}
    print("tape_overhead:", ", ".join(f"{key} {value:.3f}" for key, value in middle.items()))
    passed = []
    for name, key in (("tape_overhead", "taped_us"), ("tape_overhead_managed", "managed_us")):
        above = [ours - bare for ours, bare in zip(found[key], found["tch_us"], strict=True)]
        limit = [LIMIT_US] * len(above)
        passed.append(record.record(name, "us", "lower", above, limit, "the most that is allowed", 1.0, middle))
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
