"""The rows of a staged directory as a PyTorch peer has them in memory, and the loss of worker/src/session on them. Not shipped."""

import json
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from enn import Model

TRAIN = 0


class Rows:
    """Training rows, standardised: x, where it is valid, y, where it is valid."""

    def __init__(self, staged: pathlib.Path) -> None:
        self.meta = json.loads((staged / "meta.json").read_text())
        arrays = {name: torch.from_numpy(np.load(staged / f"{name}.npy")) for name in ("x", "x_mask", "y", "y_mask", "split")}
        rows = torch.nonzero(arrays["split"] == TRAIN).flatten()
        flat = lambda name: arrays[name][rows].reshape(len(rows), -1)
        stat = lambda which, key: torch.tensor([s[key] for s in self.meta[which]])
        scale = lambda which: torch.where(stat(which, "std") > 0, stat(which, "std"), 1.0)
        self.x = ((flat("x") - stat("x_stats", "mean")) / scale("x_stats")).float()
        self.y = ((flat("y") - stat("y_stats", "mean")) / scale("y_stats")).float()
        self.x_mask, self.y_mask = flat("x_mask").bool() & self.x.isfinite(), flat("y_mask").bool() & self.y.isfinite()

    def to(self, device: str) -> "Rows":
        """All of them there."""
        self.x, self.y, self.x_mask, self.y_mask = (t.to(device) for t in (self.x, self.y, self.x_mask, self.y_mask))
        return self

    def __len__(self) -> int:
        return len(self.x)

    def model(self, config: dict) -> Model:
        """The model of the [model] table for these rows."""
        flags = torch.tensor([i for i, f in enumerate(self.meta["features"]) if f["has_missing"]], dtype=torch.long)
        rank = config.get("head_rank") or min(32, self.y.shape[1], len(self) // 4)
        return Model(config, self.x.shape[1], flags, self.meta["out_shape"], rank)

    def loss(self, model: torch.nn.Module, pick: torch.Tensor) -> torch.Tensor:
        """Mean over valid cells of Huber on z plus half of that on the base."""
        z, base = model(self.x[pick], self.x_mask[pick])
        mask = self.y_mask[pick]
        target = torch.where(mask, self.y[pick], 0.0)
        loss = (F.huber_loss(z, target, reduction="none") * mask).sum()
        return (loss + 0.5 * (F.huber_loss(base, target, reduction="none") * mask).sum()) / mask.sum()


def fused_adamw(model: torch.nn.Module, train: dict) -> torch.optim.AdamW:
    """AdamW as the [train] table asks for: matrices decay, vectors do not."""
    decay = [p for p in model.parameters() if p.ndim >= 2]
    plain = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decay, "weight_decay": train["weight_decay"]}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=train["lr"], fused=True)


def descend(model: torch.nn.Module, optimizer: torch.optim.Optimizer, average: list[torch.Tensor], loss: torch.Tensor) -> None:
    """One update: backward, clip, step, moving average."""
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    with torch.no_grad():
        torch._foreach_lerp_(average, list(model.parameters()), 0.02)
