"""The GPT of examples/gpt as a good PyTorch user writes it. Parameters are those of examples/gpt/model.rs."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class CausalAttention(nn.Module):
    """Multi-head self-attention through PyTorch's fused kernels."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.dropout = heads, dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = (part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(batch, tokens, width)
        return F.dropout(self.out(mixed), self.dropout, self.training)


class Block(nn.Module):
    """Attention and feed-forward, normalised before, added after."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads, dropout)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_attention(x))
        return x + self.mlp(self.norm_mlp(x))


class Gpt(nn.Module):
    """GPT-2's shape; the table of tokens is also the output head. `size` is an entry of tests/bench/sizes.json."""

    def __init__(self, size: dict) -> None:
        super().__init__()
        width, dropout = size["width"], size["dropout"]
        self.tokens = nn.Embedding(size["vocabulary"], width)
        self.positions = nn.Embedding(size["context"], width)
        self.blocks = nn.ModuleList([Block(width, size["heads"], dropout) for _ in range(size["depth"])])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, size["vocabulary"], bias=False)
        self.head.weight = self.tokens.weight
        self.dropout = nn.Dropout(dropout)
        for name, parameter in self.named_parameters():
            if parameter.ndim < 2:
                if name.endswith("bias"):
                    nn.init.zeros_(parameter)
                continue
            writes_stream = name.endswith(("out.weight", "mlp.2.weight"))
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * size["depth"]) if writes_stream else 0.02)

    def forward(self, ids: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """Mean loss."""
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.dropout(self.tokens(ids) + self.positions(places))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), following.view(-1))

    @staticmethod
    def batch(size: dict, count: int, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Random ids and the ids that follow."""
        shape = (count, size["context"])
        return tuple(torch.randint(size["vocabulary"], shape, device=device) for _ in range(2))
