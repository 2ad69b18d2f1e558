"""We read the checkpoints PyTorch writes: divided tensors, optimizer state, every element type, odd layouts, damage."""

import json
import tempfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from _ckpt import fixture, load_raw, on_world, same


# Before, FSDP2 asks a CPU's stream for what only a GPU's has; what it divides it saves all the same.
COMPUTES_DIVIDED = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 7)


def odd_tensors():
    torch.manual_seed(3)
    types = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
             torch.uint8]
    tensors = {f"types.{dtype}": (torch.randn(3, 5) * 50).to(dtype) for dtype in types}
    tensors.update({
        "bool": torch.randn(4, 3) > 0,
        "scalar": torch.tensor(2.5),
        "integer": torch.tensor(7),
        "empty": torch.empty(0, 3),
        "transposed": torch.randn(4, 6).t(),
        "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "view": torch.randn(10, 10)[2:5, 3:7],
        "expanded": torch.randn(1, 4).expand(3, 4),
        "parameter": torch.nn.Parameter(torch.randn(3, 3)),
        "n" * 300: torch.randn(2),
        "große.Zahl": torch.randn(2),
    })
    return tensors


def values():
    return {"lr": 1e-3, "name": "weather", "none": None, "betas": (0.9, 0.999), "steps": [1, 2, 3], "wide": 1 << 40,
            "nested": {"a": {"b": True}}, "list": [{"x": 1}, [2, (3,)]], "blob": b"\x00\xff"}


def read(directory, folder):
    fixture("read", directory, folder)
    found = json.loads((Path(folder) / "index.json").read_text())
    return load_raw(folder, found["tensors"]), found["values"]


def compare(found, want):
    assert set(found) == set(want), set(found) ^ set(want)
    for name, tensor in want.items():
        assert not isinstance(found[name], str), found[name]
        assert same(found[name], tensor.detach()), name


def check_alone(folder):
    for label, writer in {
        "default": lambda path: dcp.FileSystemWriter(path),
        "two threads": lambda path: dcp.FileSystemWriter(path, thread_count=2),
        "a file per item": lambda path: dcp.FileSystemWriter(path, single_file_per_rank=False),
    }.items():
        directory, tensors = folder / label, odd_tensors()
        dcp.save({"m": dict(tensors), "v": values()}, storage_writer=writer(directory))
        found, text = read(directory, folder / f"{label} out")
        compare(found, {f"m.{name}": tensor for name, tensor in tensors.items()})
        assert text["v.lr"] == "Float(0.001)" and text["v.wide"] == f"Int({1 << 40})", text
        assert text["v.nested.a.b"] == "Bool(true)" and text["v.betas"] == "Tuple([Float(0.9), Float(0.999)])", text
        assert text["v.blob"] == "Bytes([0, 255])" and text["v.none"] == "None", text
        print(f"{label}: {len(found)} tensors, {len(text)} values")


def check_refused(folder):
    """Kinds that are not read are refused by name, and do not keep the others from being read."""
    directory = folder / "refused"
    state = {"good": torch.ones(2), "float8": torch.ones(2).to(torch.float8_e4m3fn), "complex": torch.ones(2, dtype=torch.cfloat)}
    dcp.save(state, checkpoint_id=directory)
    found, _ = read(directory, folder / "refused out")
    assert same(found["good"], torch.ones(2))
    assert "float8_e4m3fn" in found["float8"] and "complex64" in found["complex"], found


def save_divided(rank, world, directory):
    mesh = init_device_mesh("cpu", (world,))
    state = {
        "rows": distribute_tensor(whole("rows"), mesh, [Shard(0)]),
        "columns": distribute_tensor(whole("columns"), mesh, [Shard(1)]),
        "few": distribute_tensor(whole("few"), mesh, [Shard(0)]),
        "copies": distribute_tensor(whole("copies"), mesh, [Replicate()]),
        "plain": whole("plain"),
    }
    dcp.save(state, checkpoint_id=directory)


SHAPES = {"rows": (7, 5), "columns": (4, 9), "few": (1, 4), "copies": (3, 3), "plain": (2, 2)}


def whole(name):
    return torch.randn(SHAPES[name], generator=torch.Generator().manual_seed(len(name)))


def train_divided(rank, world, directory, reference):
    """FSDP2 and AdamW: the real thing."""
    torch.manual_seed(5)
    mesh = init_device_mesh("cpu", (world,))
    model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(3):
        torch.manual_seed(10 + step)
        if COMPUTES_DIVIDED:
            model(torch.randn(8, 6)).square().mean().backward()
        else:
            for weight in model.parameters():
                weight.grad = torch.randn_like(weight)
        optimizer.step()
        optimizer.zero_grad()
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": moments}, checkpoint_id=directory)
    full = {f"model.{name}": tensor.full_tensor() for name, tensor in weights.items()}
    for name, state in moments["state"].items():
        for part, tensor in state.items():
            full[f"optim.state.{name}.{part}"] = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    if rank == 0:
        torch.save(full, reference)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        check_alone(folder)
        check_refused(folder)
        for world in [2, 3]:
            directory = folder / f"divided-{world}"
            on_world(world, save_divided, directory)
            found, _ = read(directory, folder / f"divided-{world}-out")
            compare(found, {name: whole(name) for name in SHAPES})
            print(f"DTensors of {world} ranks: {len(found)} tensors")
        directory, reference = folder / "fsdp", folder / "fsdp.pt"
        on_world(2, train_divided, directory, reference)
        found, text = read(directory, folder / "fsdp-out")
        compare(found, torch.load(reference, weights_only=True))
        assert any(name.endswith("lr") and value == "Float(0.01)" for name, value in text.items()), text
        print(f"FSDP2 and AdamW of 2 ranks: {len(found)} tensors, {len(text)} values")


if __name__ == "__main__":
    main()
