"""rows_per_s_cpu_SHAPE: training throughput, rows per second of epochs after the first, of the same model, data, batch, threads and
precision, ours against PyTorch eager with a DataLoader; small rows at least 2 ×, large rows at least 1.2 ×. data_wait_share_cpu_SHAPE:
share of our time that training waits for data; below 2 %.

    rows_per_s.py [--device cpu|cuda] [--rounds 3] [SHAPE…]

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

EPOCHS = 4
WORKERS = {"cpu": [0, 1, 2], "cuda": [0, 2, 4, 8]}
# Rows of each of the two epochs that a setting of the DataLoader is judged by, in batches.
TUNING_BATCHES = 60
WAIT_MAX = 0.02


def tuned(config: pathlib.Path, shape: rows.Shape, options: dict) -> tuple[dict, dict]:
    """The best setting of the DataLoader, and what all of them reached."""
    found = {}
    for fetch in ("row", "batch"):
        for workers in WORKERS[options["device"]]:
            setting = {"workers": workers, "fetch": fetch}
            tried = {**options, **setting, "epochs": 2, "rows_max": TUNING_BATCHES * shape.batch}
            found[f"{fetch}, {workers} workers"] = (rows.peer("train", config, **tried)["rates"][-1], setting)
    best = max(found.values(), key=lambda one: one[0])[1]
    return best, {name: rate for name, (rate, _) in found.items()}


def ours(config: pathlib.Path, shape: rows.Shape, folder: pathlib.Path, device: str) -> tuple[float, float, int]:
    """Rows per second and share of waiting over the epochs after the first; parameters."""
    runs = folder / "runs"
    arguments = ["train", str(config), "--runs-dir", str(runs), "--set", f"train.threads={rows.threads()}"]
    rows.enn(arguments, device)
    events = rows.events(runs)
    steps = -(-shape.train_rows // shape.batch)
    times = [event["step_ms"] for event in events if event["event"] == "epoch_ended"][1:]
    rates = [1000 * shape.train_rows / (steps * time["total"]) for time in times]
    waited = sum(time["data"] for time in times) / sum(time["total"] for time in times)
    parameters = next(event["parameters"] for event in events if event["event"] == "model_built")
    return statistics.median(rates), waited, parameters


def measure(name: str, device: str, rounds: int) -> bool:
    """One shape; whether it passes."""
    shape, machine = rows.SHAPES[name], rows.machine_name(device)
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        rows.make_data(folder, shape)
        config = rows.configure(folder, name, EPOCHS, shape.batch, device)
        options = {"device": device, "threads": rows.threads(), "rows": shape.train_rows, "batch": shape.batch}
        setting, tuning = tuned(config, shape, options)
        a, b, waits = [], [], []
        for _ in range(rounds):
            rate, waited, parameters = ours(config, shape, folder, device)
            theirs = rows.peer("train", config, **options, **setting, epochs=EPOCHS, rows_max=shape.rows)
            if parameters != theirs["parameters"]:
                sys.exit(f"not the same model: {parameters} parameters here, {theirs['parameters']} in the peer")
            a.append(rate)
            b.append(statistics.median(theirs["rates"]))
            waits.append(waited)
            print(f"{name}: ours {rate:,.0f} rows/s, waiting {waited:.2%}; peer {b[-1]:,.0f}", flush=True)
    more = {"peer_setting": setting, "peer_tuning": tuning, "batch": shape.batch, "features": shape.features, "grid": shape.grid}
    peer_name = f"PyTorch eager, DataLoader by {setting['fetch']}, {setting['workers']} workers"
    passed = record.record(f"rows_per_s_{machine}_{name}", "rows/s", "higher", a, b, peer_name, rows.LIMITS[name], more)
    return passed & record.record(f"data_wait_share_{machine}_{name}", "share", "lower", waits, [WAIT_MAX], "limit", 1.0)


def main(arguments: list[str]) -> None:
    """One shape after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("shapes", nargs="*", default=list(rows.SHAPES))
    options = parser.parse_args(arguments)
    passed = [measure(name, options.device, options.rounds) for name in options.shapes]
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
