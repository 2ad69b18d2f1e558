"""rows_per_s_cpu_SHAPE: training throughput, rows per second of epochs after the first, of the same model, data, batch, threads and
precision, ours against PyTorch eager with a DataLoader; small rows at least 2 ×, large rows at least 1.2 ×. data_wait_share_cpu_SHAPE:
share of our time that training waits for data; below 2 %.

    rows_per_s.py [--device cpu|cuda] [--rounds 3] [--threads N] [SHAPE…]

The peer's DataLoader is tuned first, over `num_workers` and over fetching rows one by one or batches at once; the best plays. Needs
ENN_PYTHON, a Python with torch 2.11 and numpy.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile

import _record as record
import _rows as rows

EPOCHS = 3
# Rows of each of the two epochs that a setting of the DataLoader is judged by, in batches.
TUNING_BATCHES = 15
WAIT_MAX = 0.02


def tuned(config: pathlib.Path, shape: rows.Shape, options: dict) -> tuple[dict, dict]:
    """The best setting of the DataLoader, and what all of them reached."""
    settings = rows.settings(options["device"])
    tried = {**options, "settings": settings, "epochs": 2, "rows_max": TUNING_BATCHES * shape.batch}
    found = rows.peer("train", config, **tried)
    return settings[max(found, key=found.get)], found


def ours(config: pathlib.Path, shape: rows.Shape, folder: pathlib.Path, device: str, threads: int) -> tuple[float, float, int]:
    """Rows per second and share of waiting over the epochs after the first; parameters."""
    runs = folder / "runs"
    arguments = ["train", str(config), "--runs-dir", str(runs), "--set", f"train.threads={threads}"]
    rows.enn(arguments, device)
    events = rows.events(runs)
    steps = -(-shape.train_rows // shape.batch)
    times = [event["step_ms"] for event in events if event["event"] == "epoch_ended"][1:]
    rates = [1000 * shape.train_rows / (steps * time["total"]) for time in times]
    waited = sum(time["data"] for time in times) / sum(time["total"] for time in times)
    parameters = next(event["parameters"] for event in events if event["event"] == "model_built")
    return statistics.median(rates), waited, parameters


def measure(name: str, wanted: argparse.Namespace) -> bool:
    """One shape; whether it passes."""
    shape, device = rows.SHAPES[name], wanted.device
    machine = rows.machine_name(device)
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        rows.make_data(folder, shape)
        config = rows.configure(folder, name, EPOCHS, shape.batch, device)
        options = {"device": device, "threads": wanted.threads, "rows": shape.train_rows, "batch": shape.batch}
        setting, tuning = tuned(config, shape, options)
        a, b, waits = [], [], []
        for _ in range(wanted.rounds):
            rate, waited, parameters = ours(config, shape, folder, device, wanted.threads)
            theirs = rows.peer("train", config, **options, **setting, epochs=EPOCHS, rows_max=shape.rows)
            if parameters != theirs["parameters"]:
                sys.exit(f"not the same model: {parameters} parameters here, {theirs['parameters']} in the peer")
            a.append(rate)
            b.append(statistics.median(theirs["rates"]))
            waits.append(waited)
            print(f"{name}: ours {rate:,.0f} rows/s, waiting {waited:.2%}; peer {b[-1]:,.0f}", flush=True)
    more = {"peer_setting": setting, "peer_tuning": tuning, "batch": shape.batch, "threads": wanted.threads, "features": shape.features, "grid": shape.grid}
    peer_name = rows.peer_name(setting)
    passed = record.record(f"rows_per_s_{machine}_{name}", "rows/s", "higher", a, b, peer_name, rows.LIMITS[name], more)
    return passed & record.record(f"data_wait_share_{machine}_{name}", "share", "lower", waits, [WAIT_MAX], "limit", 1.0)


if __name__ == "__main__":
    rows.main(__doc__, measure, sys.argv[1:])
