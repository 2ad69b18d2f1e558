"""One training process of the eager peer: reads a staged directory and a configuration, trains, prints the median step in milliseconds.

Usage: _eager_step.py CONFIG STAGED THREADS STEPS
"""

import json
import pathlib
import statistics
import sys
import time
import tomllib

import numpy as np
import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "conformance" / "peers"))
from enn import Model  # noqa: E402

WARM_UP = 10


def main() -> None:
    """Trains as worker/src/session does: Huber on z plus λ on the base, clip, AdamW in two groups, EMA."""
    config = tomllib.loads(pathlib.Path(sys.argv[1]).read_text())
    staged = pathlib.Path(sys.argv[2])
    torch.set_num_threads(int(sys.argv[3]))
    torch.manual_seed(0)
    meta = json.loads((staged / "meta.json").read_text())
    arrays = {name: torch.from_numpy(np.load(staged / f"{name}.npy")) for name in ("x", "x_mask", "y", "y_mask", "split")}
    rows = torch.nonzero(arrays["split"] == 0).flatten()
    flat = lambda name: arrays[name][rows].reshape(len(rows), -1)
    stat = lambda which, key: torch.tensor([s[key] for s in meta[which]])
    scale = lambda which: torch.where(stat(which, "std") > 0, stat(which, "std"), 1.0)
    x = ((flat("x") - stat("x_stats", "mean")) / scale("x_stats")).float()
    y = ((flat("y") - stat("y_stats", "mean")) / scale("y_stats")).float()
    x_mask, y_mask = flat("x_mask").bool() & x.isfinite(), flat("y_mask").bool() & y.isfinite()
    flags = torch.tensor([i for i, f in enumerate(meta["features"]) if f["has_missing"]], dtype=torch.long)
    rank = config["model"].get("head_rank") or min(32, y.shape[1], len(rows) // 4)
    model = Model(config["model"], x.shape[1], flags, meta["out_shape"], rank)
    train = config["train"]
    decay = [p for p in model.parameters() if p.ndim >= 2]
    plain = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decay, "weight_decay": train["weight_decay"]}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=train["lr"], fused=True)
    average = [p.detach().clone() for p in model.parameters()]
    batch, times = train["batch"], []
    for _ in range(int(sys.argv[4]) + WARM_UP):
        start = time.perf_counter()
        pick = torch.randint(len(rows), (batch,))
        z, base = model(x[pick], x_mask[pick])
        target, mask = torch.where(y_mask[pick], y[pick], 0.0), y_mask[pick]
        loss = (F.huber_loss(z, target, reduction="none") * mask).sum()
        loss = (loss + 0.5 * (F.huber_loss(base, target, reduction="none") * mask).sum()) / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        torch._foreach_lerp_(average, list(model.parameters()), 0.02)
        times.append(1000 * (time.perf_counter() - start))
    print(json.dumps({"ms": statistics.median(times[WARM_UP:]), "parameters": sum(p.numel() for p in model.parameters())}))


if __name__ == "__main__":
    main()
