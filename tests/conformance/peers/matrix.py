"""Square linear layers one after the other: what a matrix-bound step can reach."""

import torch
from torch import nn


class Matrix(nn.Module):
    """`size` is an entry of tests/bench/sizes.json."""

    def __init__(self, size: dict) -> None:
        super().__init__()
        width = size["width"]
        self.layers = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(size["depth"])))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mean square of what comes out."""
        return self.layers(x).float().square().mean()

    @staticmethod
    def batch(size: dict, count: int, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Random rows."""
        return (torch.randn(count, size["width"], device=device),)
