"""The ENN model of worker/model/src/model written as one would in PyTorch: the peer of the step benches. Not shipped.

Names and shapes follow the table in worker/model/src/model/mod.rs, so that the parameter count can be compared.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Retention(nn.Module):
    """q, v, g; decayed sums as one product with the (N, N) decay matrix, which is the fast eager form for short sequences."""

    def __init__(self, d: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.qvg = nn.Linear(d, 3 * d, bias=False)
        self.out = nn.Linear(d, d, bias=False)
        self.norm = nn.LayerNorm(d)
        self.beta = nn.Parameter(5 + torch.arange(heads) / heads)
        self.heads, self.causal = heads, causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, d = x.shape
        q, v, g = self.qvg(x).chunk(3, -1)
        decay = 1 - torch.exp2(-self.beta.clamp(1, 16))
        t = torch.arange(n, device=x.device)
        gap = (t[:, None] - t[None, :]).float()
        weight = decay[:, None, None] ** gap.abs()
        if self.causal:
            weight = weight * (gap >= 0)
        v = v.view(b, n, self.heads, d // self.heads).transpose(1, 2)
        s = (weight @ v).transpose(1, 2).reshape(b, n, d)
        return self.out(self.norm(q * s) * F.silu(g))


class Feed(nn.Module):
    """SwiGLU."""

    def __init__(self, d: int, hidden: int) -> None:
        super().__init__()
        self.input = nn.Linear(d, 2 * hidden, bias=False)
        self.out = nn.Linear(hidden, d, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u, g = self.input(x).chunk(2, -1)
        return self.out(u * F.silu(g))


class RetNet(nn.Module):
    """Retention and feed-forward, pre-norm."""

    def __init__(self, d: int, heads: int, hidden: int, causal: bool, drop: float) -> None:
        super().__init__()
        self.norm_retention, self.norm_feed = nn.LayerNorm(d), nn.LayerNorm(d)
        self.retention, self.feed, self.drop = Retention(d, heads, causal), Feed(d, hidden), nn.Dropout(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop(self.retention(self.norm_retention(x)))
        return x + self.drop(self.feed(self.norm_feed(x)))


class Attention(nn.Module):
    """Softmax attention with an optional key bias."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.q, self.kv, self.out, self.heads = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d), heads

    def forward(self, q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        b, n, d = k.shape
        m = q.shape[1]
        split = lambda x, length: x.view(-1, length, self.heads, d // self.heads).transpose(1, 2)
        key, value = self.kv(k).chunk(2, -1)
        query = split(self.q(q), m).expand(b, -1, -1, -1)
        mixed = F.scaled_dot_product_attention(query, split(key, n), split(value, n), attn_mask=bias)
        return self.out(mixed.transpose(1, 2).reshape(b, m, d))


class Cross(nn.Module):
    """Cross-attention block."""

    def __init__(self, d: int, heads: int, hidden: int, drop: float) -> None:
        super().__init__()
        self.norm_query, self.norm_key, self.norm_feed = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.attention, self.feed, self.drop = Attention(d, heads), Feed(d, hidden), nn.Dropout(drop)

    def forward(self, q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        x = q + self.drop(self.attention(self.norm_query(q), self.norm_key(k), bias))
        return x + self.drop(self.feed(self.norm_feed(x)))


class Self(nn.Module):
    """Self-attention block."""

    def __init__(self, d: int, heads: int, hidden: int, drop: float) -> None:
        super().__init__()
        self.norm, self.norm_feed = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attention, self.feed, self.drop = Attention(d, heads), Feed(d, hidden), nn.Dropout(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.drop(self.attention(y, y, None))
        return x + self.drop(self.feed(self.norm_feed(x)))


class Model(nn.Module):
    """Preset spatiotemporal, scalar gate; `c` is the [model] table of the configuration."""

    def __init__(self, c: dict, columns: int, flags: torch.Tensor, shape: list[int], rank: int) -> None:
        super().__init__()
        d, heads, drop = c["d_model"], c["heads"], c.get("dropout", 0.1)
        hidden = int(d * c.get("mlp_ratio", 4.0) * 2 / 3)
        self.flags, self.shape, self.d = flags, shape, d
        features = columns + int(flags.numel())
        self.patch = c["patch"]
        self.counts = [math.ceil(s / p) for s, p in zip(shape, self.patch, strict=True)]
        self.tokens = [c["spatial_latents"], c["temporal_latents"]]
        self.tokenisers = nn.ModuleList([nn.Linear(features, n * d) for n in self.tokens])
        depth = [c["spatial_depth"], c["temporal_depth"]]
        self.blocks = nn.ModuleList(
            [nn.ModuleList([RetNet(d, heads, hidden, i == 1, drop) for _ in range(depth[i])]) for i in range(2)]
        )
        self.norms = nn.ModuleList([nn.LayerNorm(d), nn.LayerNorm(d)])
        bias = [math.log(1 / n) for n in self.tokens for _ in range(n)]
        self.register_buffer("key_bias", torch.tensor(bias)[None])
        self.latents = nn.Parameter(0.02 * torch.randn(c["fuser_latents"], d))
        self.rounds = nn.ModuleList(
            [
                nn.ModuleList(
                    [Cross(d, heads, hidden, drop)] + [Self(d, heads, hidden, drop) for _ in range(c["fuser_self_layers"])]
                )
                for _ in range(c["fuser_rounds"])
            ]
        )
        self.fuser_norm, self.base_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        cells = math.prod(shape)
        self.scores, self.factors = nn.Linear(d, rank), nn.Linear(rank, cells)
        self.linear = nn.Linear(features, cells, bias=False) if c.get("linear_branch") else None
        self.axes = nn.ParameterList([nn.Parameter(0.02 * torch.randn(n, d)) for n in self.counts])
        self.collect = Cross(d, heads, hidden, drop)
        self.along = nn.ModuleList([RetNet(d, heads, hidden, False, drop) for _ in range(c["collector_depth"])])
        self.collect_norm = nn.LayerNorm(d)
        self.refine = nn.Linear(d, math.prod(self.patch))
        self.gate = nn.Sequential(nn.LayerNorm(2 * d + 2), nn.Linear(2 * d + 2, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.where(mask, x, 0.0)
        x = torch.cat([x, (~mask[:, self.flags]).float()], 1)
        b = x.shape[0]
        parts = []
        for tokenise, blocks, norm, n in zip(self.tokenisers, self.blocks, self.norms, self.tokens, strict=True):
            t = tokenise(x).view(b, n, self.d)
            for block in blocks:
                t = block(t)
            parts.append(norm(t))
        u = torch.cat(parts, 1)
        z = self.latents[None]
        for layers in self.rounds:
            z = layers[0](z, u, self.key_bias)
            for layer in layers[1:]:
                z = layer(z)
        z = self.fuser_norm(z)
        pooled = z.mean(1)
        base = self.factors(self.scores(self.base_norm(pooled)))
        if self.linear is not None:
            base = base + self.linear(x)
        s, t = self.counts
        grid = (self.axes[0][:, None] + self.axes[1][None]).reshape(1, s * t, self.d)
        g = self.collect(grid, z)
        for i, block in enumerate(self.along):
            g = g.view(b, s, t, self.d)
            if i % 2 == 0:
                g = block(g.transpose(1, 2).reshape(b * t, s, self.d)).view(b, t, s, self.d).transpose(1, 2)
            else:
                g = block(g.reshape(b * s, t, self.d)).view(b, s, t, self.d)
            g = g.reshape(b, s * t, self.d)
        g = self.collect_norm(g)
        p, q = self.patch
        delta = self.refine(g).view(b, s, t, p, q).permute(0, 1, 3, 2, 4).reshape(b, s * p, t * q)
        delta = delta[:, : self.shape[0], : self.shape[1]].reshape(b, -1)
        gate = torch.cat([pooled, g.mean(1), base.square().mean(1, True), delta.square().mean(1, True)], 1)
        return base + torch.sigmoid(self.gate(gate)) * delta, base


class Training(nn.Module):
    """The model with its objective: Huber on the gated output plus half of that on the base, over valid cells."""

    def __init__(self, size: dict) -> None:
        super().__init__()
        shape = size["out_shape"]
        rank = size["config"].get("head_rank") or min(32, math.prod(shape), size["train_rows"] // 4)
        self.model = Model(size["config"], size["features"], torch.zeros(0, dtype=torch.long), shape, rank)

    def forward(self, x: torch.Tensor, x_mask: torch.Tensor, y: torch.Tensor, y_mask: torch.Tensor) -> torch.Tensor:
        """Mean loss."""
        z, base = self.model(x, x_mask)
        target = torch.where(y_mask, y, 0.0)
        loss = (F.huber_loss(z, target, reduction="none") * y_mask).sum()
        loss = loss + 0.5 * (F.huber_loss(base, target, reduction="none") * y_mask).sum()
        return loss / y_mask.sum()

    @staticmethod
    def batch(size: dict, count: int, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Random x, where it is valid, y, where it is valid."""
        x = torch.randn(count, size["features"], device=device)
        y = torch.randn(count, math.prod(size["out_shape"]), device=device)
        return x, x.isfinite(), y, y.isfinite()
