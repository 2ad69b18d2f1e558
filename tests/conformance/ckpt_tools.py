"""enn ckpt convert, merge, diff and verify beside PyTorch and safetensors: every form is read by its owner, and what they write by us."""

import json
import os
import struct
import subprocess
import tempfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint._extension import ZStandard
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from _ckpt import BIN, on_world, same

DAMAGED = 5


def enn(*args, code=0):
    done = subprocess.run([BIN / "enn", "ckpt", *map(str, args)], capture_output=True, text=True, timeout=120)
    assert done.returncode == code, f"{args}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def told(*args, code=0):
    return json.loads(enn(*args, "--json", code=code))


def tensors():
    torch.manual_seed(1)
    types = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int16, torch.uint8, torch.bool,
             torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.complex64]
    state = {f"t.{dtype}".replace("torch.", ""): (torch.randn(3, 4) * 9).abs().to(dtype) for dtype in types}
    packed = torch.arange(12, dtype=torch.uint8).view(3, 4).view(torch.float4_e2m1fn_x2)
    return {**state, "t.float4_e2m1fn_x2": packed, "scalar": torch.tensor(2.5), "empty": torch.empty(0, 3), "turned": torch.randn(4, 6).t().contiguous()}


def compare(found, want):
    assert set(found) == set(want), set(found) ^ set(want)
    for name, tensor in want.items():
        assert same(found[name], tensor.contiguous()), name


def load_dcp(directory, want):
    state = {name: torch.zeros_like(tensor) for name, tensor in want.items()}
    dcp.load(state, checkpoint_id=directory, no_dist=True)
    return state


def check_forms(folder):
    want = tensors()
    dcp.save(dict(want), checkpoint_id=folder / "dcp", no_dist=True)
    assert told("verify", folder / "dcp")["tensors"] == len(want)
    enn("convert", folder / "dcp", folder / "a.safetensors")
    compare(load_file(folder / "a.safetensors"), want)
    enn("convert", folder / "a.safetensors", folder / "a.pt")
    compare(torch.load(folder / "a.pt", weights_only=True), want)
    enn("convert", folder / "a.pt", folder / "again", "--shard-bytes", 100)
    compare(load_dcp(folder / "again", want), want)
    assert len(list((folder / "again").glob("*.distcp"))) > 1
    enn("convert", folder / "again", folder / "shards", "--to", "shards", "--shard-bytes", 200)
    index = json.loads((folder / "shards/model.safetensors.index.json").read_text())
    found = {}
    for file in sorted(set(index["weight_map"].values())):
        found.update(load_file(folder / "shards" / file))
    compare(found, want)
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in want.values())
    enn("merge", folder / "shards", folder / "one.safetensors")
    assert told("diff", folder / "dcp", folder / "one.safetensors")["same"]
    enn("convert", folder / "shards/model.safetensors.index.json", folder / "ours", "--to", "enn")
    assert told("verify", folder / "ours", "--deep")["ok"]
    compare(load_dcp(folder / "ours", want), want)
    save_file({"x": torch.ones(2)}, folder / "shards/model-99999-of-99999.safetensors")
    assert any("left over" in problem for problem in told("verify", folder / "shards", code=DAMAGED)["problems"])
    print(f"forms: {len(want)} tensors through DCP, safetensors, shards, .pt and ENN")


def check_choice(folder):
    state = {"model": {"a": torch.randn(5), "b": torch.arange(3)}, "optim": {"groups": [{"lr": 0.5}], "m": torch.ones(2)}}
    dcp.save(state, checkpoint_id=folder / "nested", no_dist=True)
    done = told("convert", folder / "nested", folder / "m.safetensors", "--only", "model", "--strip", "model", "--dtype", "bfloat16")
    found = load_file(folder / "m.safetensors")
    assert set(found) == {"a", "b"} and same(found["a"], state["model"]["a"].bfloat16()) and same(found["b"], torch.arange(3))
    assert any(line.startswith("optim.m") for line in done["left_out"]), done
    # The nesting that PyTorch's own tool gives.
    enn("convert", folder / "nested", folder / "ours.pt")
    dcp_to_torch_save(folder / "nested", folder / "theirs.pt")
    ours, theirs = (torch.load(folder / name, weights_only=True) for name in ["ours.pt", "theirs.pt"])
    assert ours["optim"]["groups"] == theirs["optim"]["groups"] == [{"lr": 0.5}], (ours, theirs)
    compare(ours["model"], theirs["model"])
    # And back, with a value of every kind.
    torch.save({**theirs, "step": 7, "names": ["a", "b"], "tied": theirs["model"]["a"]}, folder / "mixed.pt")
    enn("convert", folder / "mixed.pt", folder / "mixed")
    dcp_to_torch_save(folder / "mixed", folder / "mixed.back.pt")
    back = torch.load(folder / "mixed.back.pt", weights_only=True)
    assert back["step"] == 7 and back["names"] == ["a", "b"] and back["optim"]["groups"] == [{"lr": 0.5}], back
    changed = {**theirs["model"], "a": theirs["model"]["a"] + 0.25}
    torch.save({**theirs, "model": changed}, folder / "changed.pt")
    found = told("diff", folder / "ours.pt", folder / "changed.pt", code=DAMAGED)
    assert [one["name"] for one in found["values"]] == ["model.a"] and abs(found["values"][0]["max_abs"] - 0.25) < 1e-6, found
    enn("diff", folder / "ours.pt", folder / "changed.pt", "--tolerance", 0.3)
    # An optimizer finds its state under numbers; PyTorch drops what is under texts without a word.
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))])
    optimizer.param_groups[0]["params"][0].grad = torch.ones(3)
    optimizer.step()
    torch.save({"optimizer": optimizer.state_dict()}, folder / "optimizer.pt")
    enn("convert", folder / "optimizer.pt", folder / "half.pt", "--dtype", "bfloat16")
    found = torch.load(folder / "half.pt", weights_only=True)["optimizer"]
    assert list(found["state"]) == [0] and same(found["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"].bfloat16()), found
    print("choice of names, element type, nesting, differences")


class Peculiar:
    """A class that no list of ours knows."""


def check_values(folder):
    """A value that is not understood is refused by name, and goes through a conversion untouched."""
    state = {"w": torch.ones(3), "odd": Peculiar(), "path": Path("/tmp")}
    dcp.save(state, checkpoint_id=folder / "values", no_dist=True)
    enn("convert", folder / "values", folder / "values-again")
    back = {"w": torch.zeros(3), "odd": None, "path": None}
    dcp.load(back, checkpoint_id=folder / "values-again", no_dist=True)
    assert type(back["odd"]).__name__ == "Peculiar" and back["path"] == Path("/tmp"), back
    left = told("convert", folder / "values", folder / "values.pt")["left_out"]
    assert any("Peculiar" in line and "not on the list" in line for line in left), left
    print("values of unknown classes pass untouched, and are refused by name")


def save_compressed(rank, world, directory):
    mesh = init_device_mesh("cpu", (world,))
    state = {"w": distribute_tensor(whole(), mesh, [Shard(0)]), "note": "text"}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(directory, _extensions=[ZStandard()]))


def save_local(rank, world, directory):
    mesh = init_device_mesh("cpu", (world,))
    state = {"w": distribute_tensor(whole(), mesh, [Shard(0)]), "same": torch.ones(2)}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(directory), use_collectives=False)


def save_hf(rank, world, directory):
    mesh = init_device_mesh("cpu", (world,))
    state = {"w": distribute_tensor(whole(), mesh, [Shard(0)]), "v": distribute_tensor(whole(), mesh, [Shard(1)]),
             "same": distribute_tensor(torch.ones(2, 2), mesh, [Replicate()])}
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(str(directory), save_distributed=True))


def save_sharded(rank, world, directory):
    """The class before DTensor."""
    from torch.distributed._shard.sharded_tensor import init_from_local_shards
    from torch.distributed._shard.sharded_tensor.shard import Shard as Piece
    rows = whole().chunk(world)
    piece = Piece.from_tensor_and_offsets(rows[rank].contiguous(), [rank * len(rows[0]), 0], rank)
    dcp.save({"w": init_from_local_shards([piece], *whole().shape)}, checkpoint_id=directory)


def whole():
    return torch.randn(9, 8, generator=torch.Generator().manual_seed(4))


def check_divided(folder):
    for label, save in {"compressed": save_compressed, "local": save_local, "hf": save_hf, "sharded": save_sharded}.items():
        directory = folder / label
        on_world(3, save, directory)
        assert told("verify", directory, "--deep")["ok"]
        enn("merge", directory, folder / f"{label}.safetensors")
        found = load_file(folder / f"{label}.safetensors")
        assert same(found["w"], whole()), label
        assert label != "hf" or (same(found["v"], whole()) and same(found["same"], torch.ones(2, 2)))
        print(f"{label}: put together from {len(list(directory.iterdir()))} files")


def check_damage(folder):
    """Rows of the table in the design: what dcp.load takes without a word is named."""
    dcp.save({"w": torch.arange(4096.0), "v": torch.ones(3)}, checkpoint_id=folder / "bits", no_dist=True)
    shard = folder / "bits/__0_0.distcp"
    sound = shard.read_bytes()
    at = sound.find(struct.pack("<4f", 100.0, 101.0, 102.0, 103.0))
    for label, bytes_ in {"bit": sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1:],
                          "zeros": sound[:at] + bytes(4096) + sound[at + 4096:], "cut": sound[:at]}.items():
        shard.write_bytes(bytes_)
        if label != "cut":
            state = {"w": torch.zeros(4096)}
            dcp.load(state, checkpoint_id=folder / "bits", no_dist=True)
            assert not same(state["w"], torch.arange(4096.0)), "PyTorch notices it by now"
        problems = told("verify", folder / "bits", code=DAMAGED)["problems"]
        assert any("w in" in problem and "__0_0.distcp" in problem for problem in problems), (label, problems)
    shard.unlink()
    assert "__0_0.distcp" in told("verify", folder / "bits", code=DAMAGED)["problems"][0]
    (folder / "bits/.metadata").write_bytes(b"")
    assert ".metadata" in told("verify", folder / "bits", code=DAMAGED)["problems"][0]

    files = sorted((folder / "hf").glob("*.safetensors"))
    kept = files[1].read_bytes()
    files[1].unlink()
    problems = told("verify", folder / "hf", code=DAMAGED)["problems"]
    assert any("tensor w" in problem and "missing" in problem for problem in problems), problems
    files[1].write_bytes(kept)
    on_world(2, save_hf, folder / "hf")
    problems = told("verify", folder / "hf", code=DAMAGED)["problems"]
    assert any("tensor w" in problem and "overlap" in problem for problem in problems), problems
    print("damage: bit, zeros, cut, missing shard, empty metadata, missing and stale shards of safetensors")


def check_strange(folder):
    """What is no checkpoint says so, and what a terminal would obey is shown."""
    (folder / "text.safetensors").write_text("no checkpoint")
    for command in ["ls", "prune", "show", "verify", "push"]:
        more = [f"file://{folder}/pushed"] if command == "push" else []
        assert "text.safetensors" in enn(command, folder / "text.safetensors", *more, code=DAMAGED), command
    names = {"a\nWRONG": torch.ones(2), "\x1b[2J": torch.ones(1), "größe": torch.ones(1)}
    torch.save(names, folder / "names.pt")
    for command in [["show", folder / "names.pt"], ["verify", folder / "names.pt"]]:
        said = enn(*command)
        assert "\x1b" not in said and "\nWRONG" not in said, said
    assert "a\\nWRONG" in enn("show", folder / "names.pt") and "größe" in enn("show", folder / "names.pt")
    enn("convert", folder / "names.pt", folder / "names.safetensors")
    compare(load_file(folder / "names.safetensors"), names)
    print("what is no checkpoint, names with line ends and escapes")


def check_newer_metadata(folder):
    """PyTorch 2.15 writes six properties, which 2.11 cannot read; after a conversion it can."""
    from torch.distributed.checkpoint import metadata as classes
    dcp.save({"w": torch.arange(6.0)}, checkpoint_id=folder / "six", no_dist=True)
    five = classes.TensorProperties.__getstate__
    classes.TensorProperties.__getstate__ = lambda self: (*five(self), (1,))
    try:
        dcp.save({"w": torch.arange(6.0)}, checkpoint_id=folder / "six", no_dist=True)
    finally:
        classes.TensorProperties.__getstate__ = five
    try:
        dcp.load({"w": torch.zeros(6)}, checkpoint_id=folder / "six", no_dist=True)
        raise SystemExit("this PyTorch reads six properties")
    except (AssertionError, ValueError, dcp.api.CheckpointException):
        pass
    enn("convert", folder / "six", folder / "five")
    state = {"w": torch.zeros(6)}
    dcp.load(state, checkpoint_id=folder / "five", no_dist=True)
    assert same(state["w"], torch.arange(6.0))
    print("six properties become five")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)
        check_forms(folder)
        check_choice(folder)
        check_values(folder)
        check_divided(folder)
        check_damage(folder)
        check_strange(folder)
        check_newer_metadata(folder)


if __name__ == "__main__":
    main()
