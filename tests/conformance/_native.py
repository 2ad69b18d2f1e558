"""Files as ENN for PyTorch writes them: its payload, its names, its modules of these sizes with random weights.

What a file means is said here a second time, with PyTorch: `expected` gives the tensors that ENN must have, by ENN's names."""

import torch
from torch import nn

F, D, H, TOKENS, OUT = 5, 16, 2, 3, (2, 3)
DEPTH, SELF = 2, 2
HIDDEN = int(D * 4.0 * 2 / 3)


def norm():
    return {"weight": torch.rand(D), "bias": torch.randn(D)}


def linear(rows, columns, bias=True):
    made = nn.Linear(columns, rows, bias=bias)
    return {name: tensor.detach().clone() for name, tensor in made.named_parameters()}


def named(prefix, tensors):
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def template(name):
    state = named("tokenizer", linear(TOKENS * D, F)) | named("norm", norm())
    state |= {"weight": torch.tensor(1.0), "eps": torch.tensor(1e-6)}
    for block in range(DEPTH):
        at = f"blocks.{block}"
        state |= named(f"{at}.norm1", norm()) | named(f"{at}.norm2", norm()) | named(f"{at}.retention.msr.norm", norm())
        for part in "qvgo":
            state |= named(f"{at}.retention.msr.{part}_proj", linear(D, D, False))
        state[f"{at}.retention.msr._beta"] = 5.0 + torch.arange(H) / H
        state |= named(f"{at}.ffn.in_proj", linear(2 * HIDDEN, D)) | named(f"{at}.ffn.out_proj", linear(D, HIDDEN))
    return named(f"fuser.tasks.{name}", state)


def perceiver():
    state = {"latents": torch.randn(2 * TOKENS, D)} | named("norm", norm())
    for round in range(DEPTH):
        at = f"cross.{round}.cross_attn"
        for part in ["norm_q", "norm_kv"]:
            state |= named(f"{at}.{part}", norm())
        for part in ["q_proj", "k_proj", "v_proj", "out_proj"]:
            state |= named(f"{at}.{part}", linear(D, D))
        state |= named(f"cross.{round}.norm_ffn", norm())
        state |= named(f"cross.{round}.ffn.in_proj", linear(2 * HIDDEN, D)) | named(f"cross.{round}.ffn.out_proj", linear(D, HIDDEN))
    for block in range(DEPTH * SELF):
        at = f"self_blocks.{block}"
        state |= named(f"{at}.attn.norm1", norm()) | named(f"{at}.norm2", norm())
        state |= named(f"{at}.attn.qkv", linear(3 * D, D)) | named(f"{at}.attn.out_proj", linear(D, D))
        state |= named(f"{at}.ff.2", linear(D, 4 * D))
    return named("fuser.perceiver", state)


def scaler():
    cells = OUT[0] * OUT[1]
    state = {"x_mean": torch.randn(F), "x_std": torch.rand(F) + 0.5, "y_mean": torch.randn(cells), "y_std": torch.rand(cells) + 0.5,
             "y_min": torch.full((cells,), -9.0), "y_max": torch.full((cells,), 9.0), "affine_a": torch.ones(cells),
             "pw_x": torch.zeros(cells, 1)}
    return named("scaler", {name: tensor.double() for name, tensor in state.items()})


def state():
    torch.manual_seed(3)
    found = scaler() | template("spatial") | template("temporal") | perceiver()
    found |= named("fuser.head.1", linear(4 * D, D)) | named("delta_gate.net.1", linear(64, 2 * D + 2))
    found |= named("temporal_token_collector.backbone.norm", norm()) | {"logger.count": torch.tensor(7)}
    return found


def payload(weights):
    config = {"d_model": D, "heads": H, "spatial_depth": DEPTH, "temporal_depth": DEPTH, "spatial_latents": TOKENS,
              "temporal_latents": TOKENS, "mlp_ratio": 4.0, "dropout": 0.0, "drop_path": 0.0, "normalization_method": "layernorm",
              "preset": "spatiotemporal", "fuser_depth": None, "fuser_self_attn_layers": SELF, "use_linear_branch": False,
              "device": torch.device("cpu"), "delta_gate_hidden_dim": 64, "patch": {"is_square": False, "patch_size_3d": (2, 2, 2)}}
    tasks = [{"type": "task", "name": "spatial", "mode": "spatial", "tokens": TOKENS, "tags": []},
             {"type": "__fuser__", "reduction": "mean", "roots": ["spatial", "temporal"]}]
    return {"version": 1, "in_dim": F, "out_shape": OUT, "config": config, "pytorch_version": torch.__version__,
            "extra": {"note": "made by a test"}, "tasks": tasks, "state_dict": weights}


def expected(s):
    """By ENN's names: what `enn ckpt convert` must make of the state."""
    made = {}
    for name in ["x_mean", "y_mean", "y_min", "y_max"]:
        made[f"scaler.{name}"] = s[f"scaler.{name}"]
    for name in ["x_std", "y_std"]:
        made[f"scaler.{name}"] = s[f"scaler.{name}"] + 1e-6

    def take(ours, theirs):
        for part in ["weight", "bias"]:
            if f"{theirs}.{part}" in s:
                made[f"{ours}.{part}"] = s[f"{theirs}.{part}"]

    for task in ["spatial", "temporal"]:
        ours, theirs = f"fuser.{task}", f"fuser.tasks.{task}"
        made[f"{ours}.tokeniser.weight"] = (s[f"{theirs}.tokenizer.weight"].double() * F**0.5).float()
        made[f"{ours}.tokeniser.bias"] = s[f"{theirs}.tokenizer.bias"]
        take(f"{ours}.norm", f"{theirs}.norm")
        for block in range(DEPTH):
            o, t = f"{ours}.block_{block}", f"{theirs}.blocks.{block}"
            take(f"{o}.norm_retention", f"{t}.norm1")
            take(f"{o}.norm_feed", f"{t}.norm2")
            take(f"{o}.retention.norm", f"{t}.retention.msr.norm")
            take(f"{o}.retention.out", f"{t}.retention.msr.o_proj")
            made[f"{o}.retention.beta"] = s[f"{t}.retention.msr._beta"]
            made[f"{o}.retention.qvg.weight"] = torch.cat([s[f"{t}.retention.msr.{p}_proj.weight"] for p in "qvg"])
            made[f"{o}.feed.in.weight"] = s[f"{t}.ffn.in_proj.weight"]
            made[f"{o}.feed.out.weight"] = s[f"{t}.ffn.out_proj.weight"]
    ours, theirs = "fuser.perceiver", "fuser.perceiver"
    made[f"{ours}.latents"] = s[f"{theirs}.latents"]
    take(f"{ours}.norm", f"{theirs}.norm")
    for round in range(DEPTH):
        o, t = f"{ours}.round_{round}.cross", f"{theirs}.cross.{round}"
        take(f"{o}.norm_query", f"{t}.cross_attn.norm_q")
        take(f"{o}.norm_key", f"{t}.cross_attn.norm_kv")
        take(f"{o}.norm_feed", f"{t}.norm_ffn")
        take(f"{o}.attention.q", f"{t}.cross_attn.q_proj")
        take(f"{o}.attention.out", f"{t}.cross_attn.out_proj")
        for part in ["weight", "bias"]:
            made[f"{o}.attention.kv.{part}"] = torch.cat([s[f"{t}.cross_attn.{p}_proj.{part}"] for p in "kv"])
        for layer in range(SELF):
            o, t = f"{ours}.round_{round}.self_{layer}", f"{theirs}.self_blocks.{round * SELF + layer}"
            take(f"{o}.norm", f"{t}.attn.norm1")
            take(f"{o}.norm_feed", f"{t}.norm2")
            take(f"{o}.attention.out", f"{t}.attn.out_proj")
            for part in ["weight", "bias"]:
                q, k, v = s[f"{t}.attn.qkv.{part}"].chunk(3)
                made[f"{o}.attention.q.{part}"], made[f"{o}.attention.kv.{part}"] = q, torch.cat([k, v])
    return made
