"""host_rss_NNgb: memory of its own that a run holds on the host while it stages and trains on NN GB of staged data (CI size: 2), the most
of `enn` and its worker together; below 1 GiB on a CPU. Pages of mapped files are not counted: the kernel takes them back when others want
them (told apart as RssFile). host_rss_growth_NNgb: what of it the size of the data makes, beside the same run on a tenth of the data;
below 256 MiB.

    host_rss.py [--gigabytes 2] [--device cpu|cuda] [--limit-mib 1024]

Needs twice the gigabytes of disk below the temporary directory, and ENN_PYTHON or this Python with numpy.
"""

import argparse
import collections
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import numpy as np

import _record as record
import _smallest as smallest
import _steps as steps

FEATURES, GRID = 480, (4, 8)
# Bytes of a staged row: numbers with their masks, row id, split.
ROW_BYTES = 5 * (FEATURES + GRID[0] * GRID[1]) + 9
# Rows that are made at once.
CHUNK_ROWS = 16_384
# Of the data, so much is enough for all that looks at a number of rows with a limit.
PART = 10
GROWTH_MAX_MIB = 256.0
CPU_MAX_MIB = 1024.0
LOOK_EVERY_S = 0.02

CONFIG = f"""
name = "large"
seed = 1
[data]
files = ["x.npy", "y.npy"]
[data.arrays]
x = "x"
y = "y"
[data.split]
kind = "random"
val = 0.01
test = 0.01
{smallest.MODEL}
patch = [1, {GRID[1]}]
[train]
epochs = 1
batch = 1024
checkpoint_every = 1
threads = 1
"""


def make_data(folder: pathlib.Path, rows: int) -> None:
    """x.npy and y.npy, a chunk at a time; y is a noisy linear function of x."""
    rng = np.random.default_rng(0)
    cells = GRID[0] * GRID[1]
    weight = rng.standard_normal((FEATURES, cells), dtype=np.float32) / np.float32(FEATURES**0.5)
    arrays = [
        np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float32, (rows, *shape))
        for name, shape in (("x", (FEATURES,)), ("y", GRID))
    ]
    for first in range(0, rows, CHUNK_ROWS):
        x = rng.standard_normal((min(CHUNK_ROWS, rows - first), FEATURES), dtype=np.float32)
        y = x @ weight + np.float32(0.1) * rng.standard_normal((len(x), cells), dtype=np.float32)
        arrays[0][first : first + len(x)] = x
        arrays[1][first : first + len(x)] = y.reshape(len(x), *GRID)
    for array in arrays:
        array.flush()


def look(pid: int) -> dict[str, dict[str, float]]:
    """MiB of a process and its descendants, by program."""
    found: dict[str, dict[str, float]] = {}
    waiting = [pid]
    while waiting:
        place = pathlib.Path(f"/proc/{waiting.pop()}")
        try:
            text = (place / "status").read_text()
            waiting += [int(child) for task in (place / "task").iterdir() for child in (task / "children").read_text().split()]
        except OSError:
            continue
        field = lambda name, text=text: int((re.search(rf"^{name}:\s+(\d+) kB", text, re.M) or [0, 0])[1]) / 1024
        name = re.search(r"^Name:\s+(\S+)", text, re.M)[1]
        one = found.setdefault(name, collections.Counter())
        one["own"] += field("RssAnon") + field("RssShmem")
        one["files"] += field("RssFile")
    return found


def watched(folder: pathlib.Path, device: str) -> dict[str, float]:
    """Peaks of a run, MiB: all programs together, each of them, and mapped files."""
    (folder / "large.toml").write_text(CONFIG)
    command = [str(steps.binary("enn", device)), "train", str(folder / "large.toml"), "--nproc-per-node", "1", "--quiet"]
    command += ["--runs-dir", str(folder / "runs"), "--set", f"cluster.device={device}"]
    peaks: dict[str, float] = collections.defaultdict(float)
    with (folder / "stderr").open("w+") as errors:
        run = subprocess.Popen(command, env=steps.library_environment(device), stdout=subprocess.DEVNULL, stderr=errors)
        while run.poll() is None:
            found = look(run.pid)
            at_once = {f"{name}_own": one["own"] for name, one in found.items()}
            at_once |= {f"{name}_files": one["files"] for name, one in found.items()}
            at_once["own"] = sum(one["own"] for one in found.values())
            for name, mib in at_once.items():
                peaks[name] = max(peaks[name], mib)
            time.sleep(LOOK_EVERY_S)
        if run.returncode != 0:
            sys.exit(f"enn train ended with {run.returncode}: {(folder / 'stderr').read_text()[-2000:]}")
    return dict(peaks)


def measured(rows: int, device: str) -> dict[str, float]:
    """Peaks of a run on so many rows that are made for it."""
    with tempfile.TemporaryDirectory() as folder:
        make_data(pathlib.Path(folder), rows)
        return watched(pathlib.Path(folder), device)


def main() -> None:
    """A run on a part of the data, then one on all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--limit-mib", type=float, help="of the whole; 1024 on a CPU, none on a GPU, whose driver and libraries hold more")
    options = parser.parse_args()
    rows = int(options.gigabytes * 1e9) // ROW_BYTES
    little, all_of_it = measured(rows // PART, options.device), measured(rows, options.device)
    name, growth = f"{options.gigabytes:g}gb", all_of_it["own"] - little["own"]
    more = {"peaks_mib": all_of_it, "peaks_of_little_mib": little, "rows": rows, "features": FEATURES, "device": options.device}
    print(f"{name}: {all_of_it['own']:.0f} MiB of its own, {growth:+.0f} MiB beside little data; {all_of_it}", flush=True)
    limit = options.limit_mib or (CPU_MAX_MIB if options.device == "cpu" else None)
    own, peer = [all_of_it["own"]], [limit or little["own"]]
    passed = record.record(f"host_rss_{name}", "MiB", "lower", own, peer, "limit" if limit else "little data", limit and 1.0, more)
    passed &= record.record(f"host_rss_growth_{name}", "MiB", "lower", [max(growth, 0.0)], [GROWTH_MAX_MIB], "limit", 1.0)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
