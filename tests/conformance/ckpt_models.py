"""Models we save are read by safetensors and by torch.load(weights_only=True); what torch and safetensors save again, we load."""

import json
import subprocess
import tempfile
import zipfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from _ckpt import BIN, expected, fixture, load_raw, same


def plain(root):
    """The best weights, and model.* where there is no best, under their plain names."""
    tensors = expected(root)
    weights = {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}
    weights.update({name.removeprefix("best."): tensor for name, tensor in tensors.items() if name.startswith("best.")})
    return weights


def compare(found, want):
    assert set(found) == set(want), set(found) ^ set(want)
    for name, tensor in want.items():
        assert same(found[name], tensor), name


def check_loaded(source, folder, want):
    """The checkpoint made of a saved model holds its weights as model and best, and is one that torch reads."""
    fixture("load", source, folder)
    directory = folder / "step-00000000"
    fixture("verify", directory)
    state = {f"{prefix}.rows": torch.zeros(7, 5) for prefix in ["model", "best"]}
    state["optim.state.rows.exp_avg"] = torch.ones(7, 5)
    dcp.load(state, checkpoint_id=directory)
    assert same(state["model.rows"], want["rows"]) and same(state["best.rows"], want["rows"])
    assert not state["optim.state.rows.exp_avg"].any()
    assert json.loads((directory / "manifest.json").read_text())["step"] == 0


def check_refused(source, words):
    done = subprocess.run([BIN / "ckpt_fixture", "load", source, source.with_suffix(".out")], capture_output=True, text=True)
    assert done.returncode != 0 and all(word in done.stderr for word in words), done.stderr


def main():
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        fixture("write", root, 3, 40)
        source, want = root / "step-00000040", plain(root)

        fixture("save", source, root / "m.safetensors")
        compare(load_file(root / "m.safetensors"), want)
        with safe_open(root / "m.safetensors", "pt") as file:
            about = file.metadata()
        assert about["format"] == "pt" and json.loads(about["enn"])["step"] == 40
        check_loaded(root / "m.safetensors", root / "from safetensors", want)
        print(f"safetensors: {len(want)} tensors")

        fixture("save", source, root / "m.pt")
        for mmap in [False, True]:
            loaded = torch.load(root / "m.pt", weights_only=True, mmap=mmap)
            compare(loaded["model"], want)
        card = json.loads(loaded["enn"])
        assert card["format"] == "enn-model" and zipfile.ZipFile(root / "m.pt").testzip() is None
        check_loaded(root / "m.pt", root / "from pt", want)
        print(f"pt: {len(want)} tensors")

        fixture("save", source, root / "copy")
        state = {"optim.state.rows.exp_avg": torch.zeros(7, 5)}
        dcp.load(state, checkpoint_id=root / "copy")
        assert same(state["optim.state.rows.exp_avg"], expected(root)["optim.state.rows.exp_avg"])
        print("directory")

        # A user changes weights in Python and saves them again: other layouts, another order, the same card.
        changed = {name: tensor.clone() for name, tensor in reversed(want.items())}
        changed["rows"] = torch.arange(35.0).reshape(5, 7).t()
        torch.save({"model": changed, "enn": loaded["enn"]}, root / "changed.pt")
        check_loaded(root / "changed.pt", root / "from changed pt", {**want, "rows": changed["rows"]})
        save_file({name: tensor.contiguous() for name, tensor in changed.items()}, root / "changed.safetensors", about)
        check_loaded(root / "changed.safetensors", root / "from changed safetensors", {**want, "rows": changed["rows"]})
        print("saved again by torch and safetensors")

        del changed["columns"]
        changed["rows"], changed["new"] = torch.zeros(3), torch.zeros(1)
        torch.save({"model": changed, "enn": loaded["enn"]}, root / "misfit.pt")
        check_refused(root / "misfit.pt", ["columns is missing", "rows is float32 [3]", "new is unexpected"])
        torch.save(changed, root / "foreign.pt")
        check_refused(root / "foreign.pt", ["a model saved by enn"])
        torch.save({"model": changed, "enn": loaded["enn"], "code": subprocess.run}, root / "code.pt")
        # Pickle protocol 2 gives subprocess.run its name of Python 2.
        check_refused(root / "code.pt", ["commands.run", "is dangerous"])
        print("misfits and foreign files are refused")


if __name__ == "__main__":
    main()
