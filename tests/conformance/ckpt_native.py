"""Files of ENN for PyTorch: what ENN has of them, under its own names, bit for bit; what it has not, by name with the reason; and a
training that begins with them."""

import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

import _native
from _ckpt import BIN, same


def enn(*args, code=0):
    done = subprocess.run([BIN / "enn", *map(str, args)], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def check_mapping(folder, weights):
    file = folder / "native.pt"
    enn("ckpt", "convert", file, folder / "m.safetensors")
    found, want = load_file(folder / "m.safetensors"), _native.expected(weights)
    assert set(found) == set(want), set(found) ^ set(want)
    assert all(same(found[name], tensor.contiguous()) for name, tensor in want.items())
    mapped = json.loads(enn("ckpt", "show", file, "--json"))["mapped"]
    taken = {name for tensor in mapped["tensors"] for name in tensor["from"]}
    left = {entry["name"]: entry["reason"] for entry in mapped["left"]}
    names = {f"state_dict.{name}" for name in weights}
    assert taken | (left.keys() & names) == names and not taken & left.keys(), "each tensor is taken or left"
    assert all(left.values())
    settings = {entry["to"]: entry["value"] for entry in mapped["settings"]}
    assert settings["model.d_model"] == "16" and settings["model.fuser_rounds"] == "2" and settings["model.fuser_latents"] == "6"
    assert {"config.device", "config.delta_gate_hidden_dim", "config.patch.is_square", "extra.note"} <= left.keys(), left
    # Whoever chooses names means those in the file.
    enn("ckpt", "convert", file, folder / "raw.pt", "--only", "state_dict", "--strip", "state_dict")
    raw = torch.load(folder / "raw.pt", weights_only=True)
    assert set(raw) == set(weights) and all(same(raw[name], weights[name]) for name in weights)
    print(f"mapping: {len(want)} tensors of {len(taken)}, {len(left)} entries left with a reason")


def check_training(folder):
    rows = np.random.default_rng(0).normal(size=(64, _native.F + 6))
    head = [f"f{i}" for i in range(_native.F)] + [f"y{i}" for i in range(6)]
    np.savetxt(folder / "t.csv", rows, delimiter=",", header=",".join(head), comments="")
    features = ", ".join(f'{{ column = "f{i}" }}' for i in range(_native.F))
    targets = ", ".join(f'"y{i}"' for i in range(6))
    config = f"""name = "native"
[data]
files = ["{folder}/t.csv"]
[data.rows]
features = [{features}]
targets = [{targets}]
out_shape = [2, 3]
[train]
epochs = 1
[cluster]
nproc_per_node = 1
"""
    (folder / "t.toml").write_text(config)
    args = ["train", folder / "t.toml", "--from", folder / "native.pt", "--scaler", "keep", "--device", "cpu", "--baselines", "quick",
            "--runs-dir", folder / "runs"]
    refused = subprocess.run([BIN / "enn", *map(str, args)], capture_output=True, text=True, timeout=300)
    assert refused.returncode != 0 and "--partial" in refused.stdout + refused.stderr, refused.stderr
    enn(*args, "--partial")
    shown = json.loads(enn("ckpt", "show", "latest", "--runs-dir", folder / "runs", "--json"))
    told = [line for line in shown["manifest"]["findings"]["decisions"] if "begins with" in line]
    taken = len([name for name in _native.expected(_native.state()) if not name.startswith("scaler.")])
    assert told and f"begins with {taken} parameters" in told[0], (taken, told)
    other = (folder / "t.toml").read_text().replace('{ column = "f4" }', "").replace(", ]", "]")
    (folder / "other.toml").write_text(other)
    said = subprocess.run([BIN / "enn", "train", folder / "other.toml", *map(str, args[2:]), "--partial"], capture_output=True, text=True, timeout=300)
    assert said.returncode != 0 and "it has 5 inputs, the data 4" in said.stderr, said.stderr
    print(f"training: begins with {taken} parameters of the file")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weights = _native.state()
        torch.save(_native.payload(weights), folder / "native.pt")
        check_mapping(folder, weights)
        check_training(folder)


if __name__ == "__main__":
    main()
