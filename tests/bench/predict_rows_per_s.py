"""predict_rows_per_s_cpu_SHAPE: rows per second from the start of the command to the written Parquet file, of an .npy file that was never
seen before, ours (`enn predict`) against a script with PyTorch eager, a DataLoader and pyarrow; small rows at least 2 ×, large rows at
least 1.2 ×. predict_steady_rows_per_s_cpu_SHAPE: the same from the first to the last row that is predicted, without a limit. With
`--times N` the file has the rows N times, and the names end in _xN: on a GPU a few rows measure how fast Python or enn starts.

    predict_rows_per_s.py [--device cpu|cuda] [--rounds 3] [--threads N] [--times N] [SHAPE…]

Needs ENN_PYTHON, a Python with torch 2.11, numpy and pyarrow.
"""

import argparse
import pathlib
import shutil
import sys
import tempfile
import time

import numpy as np

import _record as record
import _rows as rows

# Rows of a batch of the peer; those tried, with each number of workers and each way to fetch.
BATCHES = [1024]
# Of the rows, so many are enough to choose a setting.
TUNING_PART = 4
# What is predicted; the array has the file's name.
DATA = "new/x.npy"


def clock(call) -> tuple[float, object]:
    """Seconds, and what the call gave."""
    start = time.perf_counter()
    found = call()
    return time.perf_counter() - start, found


def tuned(config: pathlib.Path, shape: rows.Shape, options: dict) -> tuple[dict, dict]:
    """The setting that predicts the first rows fastest, and all of them."""
    settings = {
        f"batch {batch} by {name}": {**setting, "batch": batch}
        for batch in BATCHES
        for name, setting in rows.settings(options["device"]).items()
    }
    found = rows.peer("predict", config, **options, settings=settings, rows=shape.rows // TUNING_PART)
    return settings[max(found, key=found.get)], found


def ours(folder: pathlib.Path, device: str, threads: int) -> tuple[float, float]:
    """Seconds from start to end with nothing staged yet; rows per second from the first notice to the last."""
    shutil.rmtree(folder / "runs" / ".staged", ignore_errors=True)
    [run] = [path.parent for path in (folder / "runs").glob("*/run.json")]
    arguments = ["predict", str(run), "--data", str(folder / DATA), "--out", str(folder / "ours.parquet"), "--replace"]
    arguments += ["--set", f"train.threads={threads}"]
    seconds, _ = clock(lambda: rows.enn(arguments, device))
    noticed = [event for event in rows.events(run / "predictions") if event["event"] == "predicted"]
    span = noticed[-1]["time"] - noticed[0]["time"]
    return seconds, (noticed[-1]["rows"] - noticed[0]["rows"]) / span if span else float("nan")


def measure(name: str, wanted: argparse.Namespace) -> bool:
    """One shape; whether it passes."""
    shape, device = rows.SHAPES[name], wanted.device
    machine = rows.machine_name(device)
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        rows.make_data(folder, shape)
        known = np.load(folder / "x.npy", mmap_mode="r")
        count = len(known) * wanted.times
        (folder / DATA).parent.mkdir()
        new = np.lib.format.open_memmap(folder / DATA, "w+", known.dtype, (count, *known.shape[1:]))
        for turn in range(wanted.times):
            new[turn * len(known) : (turn + 1) * len(known)] = known
        new.flush()
        config = rows.configure(folder, name, 1, shape.batch, device)
        rows.enn(["train", str(config), "--runs-dir", str(folder / "runs")], device)
        options = {"device": device, "threads": wanted.threads, "data": DATA}
        setting, tuning = tuned(config, shape, options)
        options |= {"rows": count, "out": str(folder / "peer.parquet")}
        whole, steady = ([], []), ([], [])
        for _ in range(wanted.rounds):
            seconds, rate = ours(folder, device, wanted.threads)
            whole[0].append(count / seconds)
            steady[0].append(rate)
            seconds, found = clock(lambda: rows.peer("predict", config, **options, **setting))
            whole[1].append(count / seconds)
            steady[1].append(found["rate"])
            print(f"{name}: {whole[0][-1]:,.0f} rows/s, peer {whole[1][-1]:,.0f}; steady {rate:,.0f}, {found['rate']:,.0f}", flush=True)
    more = {"peer_setting": setting, "peer_tuning": tuning, "rows": count, "threads": wanted.threads}
    peer_name, suffix = rows.peer_name(setting), f"_x{wanted.times}" if wanted.times > 1 else ""
    record.record(f"predict_steady_rows_per_s_{machine}_{name}{suffix}", "rows/s", "higher", *steady, peer_name, None, more)
    limit = rows.LIMITS[name]
    return record.record(f"predict_rows_per_s_{machine}_{name}{suffix}", "rows/s", "higher", *whole, peer_name, limit, more)


if __name__ == "__main__":
    times = {"type": int, "default": 1, "help": "how often the rows are in the file that is predicted"}
    rows.main(__doc__, measure, sys.argv[1:], {"--times": times})
