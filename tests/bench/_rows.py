"""What the benches of throughput share: two shapes of rows, their data as .npy files, our configuration, and how a run is read."""

import argparse
import collections.abc
import dataclasses
import json
import os
import pathlib
import subprocess
import sys

import numpy as np

import _record as record
import _steps as steps

PEER = pathlib.Path(__file__).with_name("_rows_peer.py")
# Of the rows: they end each epoch of ours with a validation that counts for nothing here.
VALIDATION = 0.01
RUN_SECONDS_MAX = 900
# Smallest ratio of our rows per second to the peer's.
LIMITS = {"small": 2.0, "large": 1.2}
# Workers of the peer's DataLoader that are tried.
WORKERS = {"cpu": [0, 1, 2], "cuda": [0, 2, 4, 8]}


@dataclasses.dataclass(frozen=True)
class Shape:
    """Rows of so many inputs and a grid of outputs, and the batch and model they are computed with."""

    rows: int
    features: int
    grid: tuple[int, int]
    batch: int
    model: dict

    @property
    def train_rows(self) -> int:
        """Rows an epoch has: `data.split` is chronological."""
        return self.rows - round(self.rows * VALIDATION)


def model(width: int, tokens: int, patch: list[int]) -> dict:
    """A [model] table that says everything the peer needs to know."""
    return {
        "preset": "spatiotemporal", "d_model": width, "heads": 4, "spatial_depth": 1, "temporal_depth": 1,
        "spatial_latents": tokens, "temporal_latents": tokens, "fuser_latents": tokens, "fuser_rounds": 1,
        "fuser_self_layers": 1, "collector_depth": 1, "patch": patch, "mlp_ratio": 2.0, "dropout": 0.0,
        "linear_branch": True, "head_rank": 16,
    }  # fmt: skip


# Small rows: 256 bytes, as sensors and tables of weather have. Large rows: 12 KiB, as fields on a grid have.
SHAPES = {
    "small": Shape(24_000, 32, (4, 8), 128, model(32, 8, [1, 4])),
    "large": Shape(2_000, 2048, (16, 64), 32, model(64, 16, [4, 8])),
}
TRAIN = {"batch": 0, "lr": 1e-3, "weight_decay": 1e-2, "clip": 1.0, "ema": 0.98, "base_loss_weight": 0.5}


def make_data(folder: pathlib.Path, shape: Shape) -> list[pathlib.Path]:
    """x.npy and y.npy, y a noisy linear function of x."""
    rng = np.random.default_rng(0)
    cells = shape.grid[0] * shape.grid[1]
    weight = rng.standard_normal((shape.features, cells), dtype=np.float32) * np.float32(shape.features**-0.5)
    x = rng.standard_normal((shape.rows, shape.features), dtype=np.float32)
    y = x @ weight + np.float32(0.1) * rng.standard_normal((shape.rows, cells), dtype=np.float32)
    paths = [folder / "x.npy", folder / "y.npy"]
    np.save(paths[0], x)
    np.save(paths[1], y.reshape(shape.rows, *shape.grid))
    return paths


def configure(folder: pathlib.Path, name: str, epochs: int, batch: int, device: str) -> pathlib.Path:
    """The configuration both sides read."""
    tables = {
        "data": {"files": ["x.npy", "y.npy"], "duplicates": "keep"},
        "data.arrays": {"x": "x", "y": "y"},
        "data.split": {"kind": "chronological", "val": VALIDATION, "test": 0.0},
        "model": SHAPES[name].model,
        "train": {**TRAIN, "batch": batch, "epochs": epochs, "checkpoint_every": epochs, "precision": "fp32"},
        "cluster": {"nproc_per_node": 1, "device": device},
    }
    lines = [f'name = "{name}"', "seed = 1"]
    for table, keys in tables.items():
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    path = folder / f"{name}.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def enn(arguments: list[str], device: str) -> None:
    """Runs `enn` without a word; its last ones if it fails."""
    done = subprocess.run(
        [str(steps.binary("enn", device)), *arguments, "--quiet"],
        env=steps.library_environment(device), capture_output=True, text=True, timeout=RUN_SECONDS_MAX,
    )  # fmt: skip
    if done.returncode != 0:
        sys.exit(f"enn {arguments[0]} ended with {done.returncode}: {done.stderr[-2000:]}")


def events(folder: pathlib.Path) -> list[dict]:
    """The journal of the newest run below `folder`."""
    journal = max(folder.glob("*/events.jsonl"), key=lambda path: path.stat().st_mtime)
    return [json.loads(line) for line in journal.read_text().splitlines()]


def peer(task: str, config: pathlib.Path, **options) -> dict:
    """What the peer measured."""
    command = [steps.python(), str(PEER), task, str(config), json.dumps(options)]
    done = subprocess.run(command, env=record.peer_environment(), capture_output=True, text=True, timeout=RUN_SECONDS_MAX)
    if done.returncode != 0:
        sys.exit(f"{PEER.name} {task} ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def settings(device: str) -> dict[str, dict]:
    """The settings of a DataLoader that are tried."""
    both = [(fetch, count) for fetch in ("row", "batch") for count in WORKERS[device]]
    return {f"{fetch}, {count} workers": {"fetch": fetch, "workers": count} for fetch, count in both}


def peer_name(setting: dict) -> str:
    """The peer with the setting of its DataLoader, as it is told."""
    return f"PyTorch eager, DataLoader by {setting['fetch']}, {setting['workers']} workers"


def arguments(about: str, given: list[str], more: dict[str, dict]) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side, in turn")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads each side computes with")
    for name, how in more.items():
        parser.add_argument(name, **how)
    parser.add_argument("shapes", nargs="*", default=list(SHAPES), help="of: " + ", ".join(SHAPES))
    return parser.parse_args(given)


def main(about: str, measure: collections.abc.Callable[[str, argparse.Namespace], bool], given: list[str], more: dict[str, dict] | None = None) -> None:
    """Measures one shape after the other. `more` flags are this bench's own."""
    options = arguments(about, given, more or {})
    passed = [measure(name, options) for name in options.shapes]
    sys.exit(0 if all(passed) else 1)


def machine_name(device: str) -> str:
    """The end of a bench's name: cpu, or the GPU's, as in h200."""
    if device == "cpu":
        return "cpu"
    return steps.torch_says("torch.cuda.get_device_name()").split()[-1].lower()
