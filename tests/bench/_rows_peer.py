"""The ENN model in PyTorch with a DataLoader over .npy files: the peer of the benches of throughput.

Usage: _rows_peer.py train|predict|latency CONFIG OPTIONS, where CONFIG is ours and OPTIONS is JSON. Prints one line of JSON.
"""

import json
import pathlib
import sys
import time
import tomllib

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "conformance" / "peers"))
from elastic import Page  # noqa: E402
from enn import Model  # noqa: E402
from staged import descend, fused_adamw  # noqa: E402


# Calls that a latency is the mean of.
CALLS = 50


class Rows(Dataset):
    """Rows of mapped arrays, one at a time: what a DataLoader asks for by default."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, row: int) -> tuple[torch.Tensor, ...]:
        return tuple(torch.from_numpy(array[row]) for array in self.arrays)


class Batches(Rows):
    """The same rows, a batch at a time: what one writes when the DataLoader is too slow."""

    def __getitems__(self, rows: list[int]) -> list[torch.Tensor]:
        return [torch.from_numpy(array[rows]) for array in self.arrays]


def loader(arrays: list[np.ndarray], batch: int, options: dict, shuffle: bool) -> DataLoader:
    """A DataLoader as tuned."""
    copied = [np.load(path, mmap_mode="c") for path in arrays]
    copied = [array.reshape(len(array), -1)[: options["rows"]] for array in copied]
    whole = options["fetch"] == "batch"
    more = {"collate_fn": lambda items: items} if whole else {}
    workers = options["workers"]
    return DataLoader(
        (Batches if whole else Rows)(copied), batch, shuffle=shuffle, num_workers=workers, persistent_workers=workers > 0,
        pin_memory=options["device"] == "cuda", **more,
    )  # fmt: skip


class Scale(torch.nn.Module):
    """Standardises as our scaler does, from the first rows."""

    def __init__(self, sample: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", sample.mean(0))
        self.register_buffer("std", sample.std(0, correction=0))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return (values - self.mean) / self.std


def build(config: dict, arrays: list[pathlib.Path], options: dict) -> tuple[Model, Scale, Scale]:
    """The model and the scales of inputs and targets."""
    torch.manual_seed(0)
    shape = list(np.load(arrays[1], mmap_mode="r").shape[1:])
    flat = [torch.from_numpy(np.load(path, mmap_mode="r")[:4096].copy()).flatten(1) for path in arrays]
    model = Model(config["model"], flat[0].shape[1], torch.zeros(0, dtype=torch.long), shape, config["model"]["head_rank"])
    device = options["device"]
    return model.to(device), Scale(flat[0]).to(device), Scale(flat[1]).to(device)


def train(config: dict, arrays: list[pathlib.Path], options: dict) -> dict:
    """Rows per second of each epoch but the first. In `folder`, if there is one, it tells its steps to whoever watches."""
    settings, device = config["train"], options["device"]
    model, scale_x, scale_y = build(config, arrays, options)
    optimizer = fused_adamw(model, settings)
    average = [p.detach().clone() for p in model.parameters()]
    batches = loader(arrays, options["batch"], options, shuffle=True)
    page, step = Page(pathlib.Path(options["folder"]) / "pages") if "folder" in options else None, 0
    rates, waits = [], []
    for _ in range(options["epochs"]):
        count, waited = 0, 0.0
        start = before = time.perf_counter()
        for x, y in batches:
            waited += time.perf_counter() - before
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            x, y = scale_x(x), scale_y(y)
            mask = y.isfinite()
            z, base = model(x, x.isfinite())
            target = torch.where(mask, y, 0.0)
            loss = (F.huber_loss(z, target, reduction="none") * mask).sum()
            loss = (loss + 0.5 * (F.huber_loss(base, target, reduction="none") * mask).sum()) / mask.sum()
            descend(model, optimizer, average, loss)
            count, step = count + len(x), step + 1
            if page:
                page.tell(step)
            before = time.perf_counter()
            if count >= options["rows_max"]:
                break
        if device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        rates.append(count / seconds)
        waits.append(waited / seconds)
    return {"rates": rates[1:], "data_wait": waits[1:], "parameters": sum(p.numel() for p in model.parameters())}


def predict(config: dict, arrays: list[pathlib.Path], options: dict) -> dict:
    """Predicts every row of x into a Parquet file; rows per second from the first batch to the last."""
    import pyarrow
    from pyarrow import parquet

    model, scale_x, scale_y = build(config, arrays, options)
    model.eval()
    batches = loader([arrays[0].parent / options["data"]], options["batch"], options, shuffle=False)
    parts, start = [], time.perf_counter()
    with torch.inference_mode():
        for (x,) in batches:
            x = scale_x(x.to(options["device"], non_blocking=True))
            z, _ = model(x, x.isfinite())
            parts.append((z * scale_y.std + scale_y.mean).cpu())
    values = torch.cat(parts).numpy()
    seconds = time.perf_counter() - start
    if "out" not in options:
        return {"rate": len(values) / seconds}
    table = {"row_id": np.arange(len(values))} | {f"cell{i}": values[:, i] for i in range(values.shape[1])}
    parquet.write_table(pyarrow.table(table), options["out"])
    return {"rate": len(values) / seconds}


def latency(config: dict, arrays: list[pathlib.Path], options: dict) -> dict:
    """Milliseconds of a call of `package` and of the model here, eager and compiled, in turn, by numbers of rows."""
    model, scale_x, scale_y = build(config, arrays, options)
    model.eval()

    def eager(x: torch.Tensor) -> torch.Tensor:
        x = scale_x(x)
        return model(x, x.isfinite())[0] * scale_y.std + scale_y.mean

    package = torch._inductor.aoti_load_package(options["package"])
    ways = {"aoti": package, "eager": eager, "compile": torch.compile(eager, dynamic=False)}
    times = {}
    for rows in options["rows"]:
        x = torch.from_numpy(np.resize(np.load(arrays[0], mmap_mode="r"), (rows, *np.load(arrays[0], mmap_mode="r").shape[1:]))).cuda()
        times[rows] = {name: [] for name in ways}
        for turn in range(options["rounds"] + 1):
            for name, call in ways.items():
                with torch.inference_mode():
                    torch.cuda.synchronize()
                    start = time.perf_counter()
                    for _ in range(CALLS):
                        call(x)
                        torch.cuda.synchronize()
                # The first turn compiles and warms.
                if turn:
                    times[rows][name].append(1e3 * (time.perf_counter() - start) / CALLS)
    return {"times": times, "parameters": sum(p.numel() for p in model.parameters())}


def tune(task, config: dict, arrays: list[pathlib.Path], options: dict) -> dict:
    """Rows per second under each of `settings`."""
    found = {}
    for name, setting in options["settings"].items():
        one = task(config, arrays, options | setting)
        found[name] = one["rates"][-1] if "rates" in one else one["rate"]
    return found


def main() -> None:
    """One measurement, or with `settings` one of each."""
    task, path, options = sys.argv[1], pathlib.Path(sys.argv[2]), json.loads(sys.argv[3])
    config = tomllib.loads(path.read_text())
    torch.set_num_threads(options["threads"])
    arrays = [path.parent / name for name in config["data"]["files"]]
    call = {"train": train, "predict": predict, "latency": latency}[task]
    print(json.dumps(tune(call, config, arrays, options) if "settings" in options else call(config, arrays, options)))


if __name__ == "__main__":
    main()
