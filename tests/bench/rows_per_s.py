"""rows_per_s_cpu_SHAPE: training throughput, rows per second of epochs after the first, of the same model, data, batch, threads and
precision, ours against PyTorch eager with a DataLoader; small rows at least 2 ×, large rows at least 1.2 ×. data_wait_share_cpu_SHAPE:
share of our time that training waits for data; below 2 %.

    rows_per_s.py [--device cpu|cuda] [--rounds 3] [--threads N] [SHAPE…]

On the CPU both work in turn (_slices.py), and the rate is that of a step in the middle of an epoch; on a GPU whole runs alternate.
The peer's DataLoader is tuned first, over `num_workers` and over fetching rows one by one or batches at once; the best plays. Needs
ENN_PYTHON, a Python with torch 2.11 and numpy.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import sys
import tempfile

import _record as record
import _rows as rows
import _slices as slices
import _steps as steps
import _watched as watched

EPOCHS = 3
# Of a pair of processes that work in turn; rows of so many times a shape's make epochs longer than many slices.
SLICES, SLICE_S, LONGER = 14, 1.5, 8
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


class Peer(watched.Paged):
    """_rows_peer.py, for ever."""

    name = "PyTorch eager"

    def __init__(self, config: pathlib.Path, folder: pathlib.Path, options: dict) -> None:
        wanted = json.dumps(options | {"epochs": watched.FOR_EVER, "rows_max": options["rows"], "folder": str(folder)})
        super().__init__([steps.python(), str(rows.PEER), "train", str(config), wanted], folder, record.peer_environment())

    def at_work(self) -> list[watched.Page]:
        # It is its own launcher.
        return [page for page in self.pages.values() if page.step() > 0 and len(page.seen) > 1]


def in_turn(folder: pathlib.Path, name: str, options: dict, rounds: int) -> tuple[list[float], list[float]]:
    """Rows per second of both in neighbouring slices."""
    shape = dataclasses.replace(rows.SHAPES[name], rows=LONGER * rows.SHAPES[name].rows)
    folder.mkdir()
    rows.make_data(folder, shape)
    config = rows.configure(folder, name, watched.FOR_EVER, shape.batch, "cpu")
    epoch, found = -(-shape.train_rows // shape.batch), []
    for number in range(rounds):
        flags = ["--set", f"train.threads={options['threads']}"]
        with watched.Enn(config, folder / f"ours-{number}", *flags, workers=1, threads=options["threads"]) as run:
            ours = slices.Arm(run, 1, SLICE_S)
            with Peer(config, folder / f"peer-{number}", options | {"rows": shape.train_rows}) as peer:
                pairs = slices.pairs((ours, slices.Arm(peer, 1, SLICE_S)), epoch, SLICES)
        found += pairs
        a, b = (statistics.median(1000 * shape.batch / pair[which].wall_ms for pair in pairs) for which in (0, 1))
        ratio = statistics.median(theirs.wall_ms / own.wall_ms for own, theirs in pairs)
        print(f"{name}: ours {a:,.0f} rows/s; peer {b:,.0f}; {ratio:.2f} in the middle of {len(pairs)} pairs", flush=True)
    a, b = ([1000 * shape.batch / pair[which].wall_ms for pair in found] for which in (0, 1))
    # The ratio is that of the pairs, not that of two medians.
    middle = statistics.median(b)
    return [middle * own / theirs for own, theirs in zip(a, b, strict=True)], b


def whole(config: pathlib.Path, folder: pathlib.Path, name: str, options: dict, rounds: int) -> tuple[list[float], list[float], list[float]]:
    """Rows per second of both in whole runs, one after the other, and our shares of waiting."""
    shape, a, b, waits = rows.SHAPES[name], [], [], []
    for _ in range(rounds):
        rate, waited, parameters = ours(config, shape, folder, options["device"], options["threads"])
        theirs = rows.peer("train", config, **options, epochs=EPOCHS, rows_max=shape.rows)
        if parameters != theirs["parameters"]:
            sys.exit(f"not the same model: {parameters} parameters here, {theirs['parameters']} in the peer")
        a.append(rate)
        b.append(statistics.median(theirs["rates"]))
        waits.append(waited)
        print(f"{name}: ours {rate:,.0f} rows/s, waiting {waited:.2%}; peer {b[-1]:,.0f}", flush=True)
    return a, b, waits


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
        a, b, waits = whole(config, folder, name, options | setting, 1 if device == "cpu" else wanted.rounds)
        if device == "cpu":
            a, b = in_turn(folder / "long", name, options | setting, wanted.rounds)
    more = {"peer_setting": setting, "peer_tuning": tuning, "batch": shape.batch, "threads": wanted.threads, "features": shape.features, "grid": shape.grid}
    peer_name = rows.peer_name(setting)
    passed = record.record(f"rows_per_s_{machine}_{name}", "rows/s", "higher", a, b, peer_name, rows.LIMITS[name], more)
    return passed & record.record(f"data_wait_share_{machine}_{name}", "share", "lower", waits, [WAIT_MAX], "limit", 1.0)


if __name__ == "__main__":
    watched.end_when_asked()
    rows.main(__doc__, measure, sys.argv[1:])
