"""One optimizer step of examples/gpt is PyTorch's: loss, clip and AdamW from the weights and moments of its checkpoint, in torch.

Trains two steps with our binary, loads both checkpoints with torch.distributed.checkpoint, does the second step in PyTorch, and
compares every weight.
"""

import os
import pathlib
import subprocess
import sys
import tempfile

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "conformance" / "peers"))
from gpt import Gpt  # noqa: E402

SIZE = {"vocabulary": 256, "context": 64, "width": 128, "depth": 4, "heads": 4, "dropout": 0.0}
RATE, BETAS, EPS, DECAY, CLIP, STEP = 1e-4, (0.9, 0.95), 1e-8, 0.1, 1.0, 2
# Weights are of the order of 0.02 and move by 1e-4.
DIFFERENCE_MAX = 1e-6


def flat(tree: dict, prefix: str = "") -> dict[str, torch.Tensor]:
    """Tensors by dotted name."""
    found = {}
    for key, value in tree.items():
        found.update(flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return found


def checkpoint(folder: pathlib.Path, step: int) -> dict[str, torch.Tensor]:
    """A checkpoint of ours, read by PyTorch."""
    file = folder / f"{step}.pt"
    dcp_to_torch_save(folder / f"step-{step:08}", file)
    return flat(torch.load(file, weights_only=True))


def ours(folder: pathlib.Path, text: pathlib.Path) -> None:
    """Two steps with a checkpoint after each; the rate of the second is the last of the schedule, a tenth of the peak."""
    binary = pathlib.Path(os.environ.get("ENN_BIN_DIR", ROOT / "target" / "release")) / "gpt"
    command = [str(binary), "--data", str(text), "--preset", "tiny", "--batch", "2", "--steps", "2", "--lr", str(10 * RATE)]
    command += ["--sample", "0", "--save-every", "1", "--device", "cpu", "--checkpoints", str(folder)]
    library = os.environ.get("LIBTORCH", str(ROOT / "target" / "libtorch")) + "/lib"
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=dict(os.environ, LD_LIBRARY_PATH=library))


def torch_name(name: str) -> str:
    """The peer's name of a parameter."""
    name = name.replace("mlp.up", "mlp.0").replace("mlp.down", "mlp.2")
    return f"{name}.weight" if name in ("tokens", "positions") else name


def main() -> None:
    """Compares."""
    with tempfile.TemporaryDirectory() as place:
        folder, text = pathlib.Path(place) / "checkpoints", pathlib.Path(place) / "text"
        # Two windows of 64 bytes: every batch is the whole text.
        data = bytes(32 + (7 * i * i + 3 * i) % 90 for i in range(2 * SIZE["context"] + 1))
        text.write_bytes(data)
        ours(folder, text)
        before, after = checkpoint(folder, STEP - 1), checkpoint(folder, STEP)
    names = {torch_name(key.removeprefix("model.")): key.removeprefix("model.") for key in before if key.startswith("model.")}
    model = Gpt(SIZE)
    weights = {name: before[f"model.{key}"] for name, key in names.items()}
    model.load_state_dict({**weights, "head.weight": weights["tokens.weight"]})
    ids = torch.tensor(list(data))
    loss = model(ids[:-1].view(2, -1), ids[1:].view(2, -1))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    parameters = list(model.named_parameters())
    groups = [{"params": [p for _, p in parameters if (p.ndim >= 2) == large], "weight_decay": DECAY * large} for large in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPS)
    for name, parameter in parameters:
        state = f"optim.state.{names[name]}"
        moments = {moment: before[f"{state}.{moment}"] for moment in ("exp_avg", "exp_avg_sq", "step")}
        optimizer.state[parameter] = {key: value.clone() for key, value in moments.items()}
    optimizer.step()
    apart = {name: (p.detach() - after[f"model.{names[name]}"]).abs().max().item() for name, p in parameters}
    moved = {name: (p.detach() - weights[name]).abs().max().item() for name, p in parameters}
    worst = max(apart, key=apart.__getitem__)
    print(f"{len(apart)} parameters; loss {loss.item():.5f}; furthest apart: {worst} by {apart[worst]:.1e}")
    still = [name for name, by in moved.items() if by < 10 * DIFFERENCE_MAX]
    if still:
        sys.exit(f"did not move: {', '.join(still)}")
    if apart[worst] > DIFFERENCE_MAX:
        sys.exit(f"more than {DIFFERENCE_MAX} apart: {', '.join(name for name, by in apart.items() if by > DIFFERENCE_MAX)}")


if __name__ == "__main__":
    main()
