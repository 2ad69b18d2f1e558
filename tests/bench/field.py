"""field: MAE of the test days of a table whose truth is known (`synth field`: hourly values at stations, the next day to be forecast)
against the best of all baselines, at most 5 % above it: the truth is linear, so that ridge is the right model. field_floor: the same against
the exact error of one who knows the truth, at most 15 % above that.

    field.py [--full]

Without --full one table, with it three.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import _record as record

SEEDS, FEW = [1, 2, 3], 1
SHAPE = ["--stations", "8", "--days", "730"]
# The largest error, against the best baseline's and against the smallest that there can be.
ABOVE_MAX, ABOVE_FLOOR_MAX = 1.05, 1.15
RUN_SECONDS_MAX = 900


def trained(seed: int, folder: pathlib.Path) -> tuple[dict, float]:
    """The metrics of a run on a fresh table, and the smallest error that there can be."""
    make = [record.binary("synth"), "field", "--out", str(folder), *SHAPE, "--seed", str(seed)]
    told = subprocess.run(make, check=True, env=record.environment(), capture_output=True, text=True).stdout
    floor = float(re.search(r"has MAE ([0-9.]+)", told)[1])
    place = ["--runs-dir", str(folder)]
    train = [record.binary("enn"), "train", str(folder / "field.toml"), "--quiet", *place]
    subprocess.run(train, check=True, env=record.environment(), stdout=subprocess.DEVNULL, timeout=RUN_SECONDS_MAX)
    metrics = [record.binary("enn"), "metrics", "latest", "--json", *place]
    return json.loads(subprocess.run(metrics, check=True, env=record.environment(), capture_output=True, text=True).stdout), floor


def main() -> None:
    """One table after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    seeds = SEEDS if parser.parse_args().full else SEEDS[:FEW]
    ours, floors, of_baselines = [], [], []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            found, floor = trained(seed, pathlib.Path(folder))
        baselines = {name: errors["mae"] for name, errors in found["baselines"].items()}
        ours.append(found["split"]["test"]["mae"])
        floors.append(floor)
        of_baselines.append(baselines)
        told = ", ".join(f"{name} {error:.3f}" for name, error in sorted(baselines.items(), key=lambda item: item[1]))
        print(f"seed {seed}: MAE {ours[-1]:.3f}, at best {floor:.3f}; {told}", flush=True)
    means = {name: statistics.mean(of[name] for of in of_baselines) for name in of_baselines[0]}
    name = min(means, key=means.get)
    more = {"seeds": seeds, "each": ours, "baselines": means, "floors": floors, "mean": statistics.mean(ours)}
    good = record.record("field", "MAE", "lower", ours, [of[name] for of in of_baselines], name, 1 / ABOVE_MAX, more)
    good &= record.record("field_floor", "MAE", "lower", ours, floors, "one who knows the truth", 1 / ABOVE_FLOOR_MAX, more)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
