"""PyTorch reads the checkpoints we write: one process and several, whole and divided anew, as .pt, and as plain zips."""

import io
import pickletools
import tempfile
import zipfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from _ckpt import expected, fixture, on_world, same

NOTE = {
    "int": 1 << 40, "small": -3, "float": 0.1, "text": "Zürich", "none": None, "yes": True, "bytes": b"\x00\xff\n",
    "list": [1, [], {}], "tuple": (0.9, ()),
}


def load_alone(root, directory):
    want = expected(root)
    state = {name: torch.zeros_like(tensor) for name, tensor in want.items()}
    state["progress.note"] = None
    dcp.load(state, checkpoint_id=directory)
    assert state.pop("progress.note") == NOTE
    for name, tensor in want.items():
        assert same(state[name], tensor), name
    return len(want)


def divide(tensor, mesh, placements):
    """A DTensor of a tensor that every rank has; gloo cannot send all the types, so nothing is sent."""
    local = tensor
    for axis, placement in enumerate(placements):
        if placement.is_shard():
            parts = local.chunk(mesh.size(axis), placement.dim)
            own = mesh.get_coordinate()[axis]
            local = parts[own] if own < len(parts) else local.narrow(placement.dim, 0, 0)
    return DTensor.from_local(local.contiguous(), mesh, placements, run_check=False, shape=tensor.shape, stride=tensor.stride())


def load_divided(rank, world, root, directory):
    """Every tensor as a DTensor with the given placement; all put together again must be what was written."""
    mesh = init_device_mesh("cpu", (world,))
    want = expected(root)
    for placement in [Replicate(), Shard(0), Shard(1)]:
        fits = lambda tensor: not placement.is_shard() or tensor.dim() > placement.dim
        names = [name for name, tensor in want.items() if fits(tensor) and tensor.numel()]
        state = {name: divide(torch.zeros_like(want[name]), mesh, [placement]) for name in names}
        dcp.load(state, checkpoint_id=directory)
        for name in names:
            whole = divide(want[name], mesh, [placement])
            assert same(state[name].to_local(), whole.to_local()), (rank, placement, name)
    if world == 4:
        square = init_device_mesh("cpu", (2, 2))
        state = {"model.big": divide(torch.zeros(300, 256), square, [Shard(0), Shard(1)])}
        dcp.load(state, checkpoint_id=directory)
        whole = divide(want["model.big"], square, [Shard(0), Shard(1)])
        assert same(state["model.big"].to_local(), whole.to_local())


def check_saved_as_pt(root, directory):
    out = root / "whole.pt"
    dcp_to_torch_save(directory, out)
    nested = torch.load(out, weights_only=True)
    want = expected(root)
    assert same(nested["model"]["rows"], want["model.rows"]), nested.keys()
    assert same(nested["optim"]["state"]["rows"]["exp_avg"], want["optim.state.rows.exp_avg"])
    assert same(nested["model"]["types.bfloat16"], want["model.types.bfloat16"])
    assert nested["progress"]["note"] == NOTE
    only = dcp.state_dict_loader._load_state_dict_from_keys({"model"}, checkpoint_id=directory)
    assert set(only) == {"model"} and same(only["model"]["big"], want["model.big"])


def check_items(directory):
    """Each item is a zip that any zip reader accepts, and a file that torch.load reads with weights_only."""
    metadata = dcp.FileSystemReader(directory).read_metadata()
    pickletools.dis((directory / ".metadata").read_bytes(), out=io.StringIO())
    checked = 0
    for index, place in metadata.storage_data.items():
        data = (directory / place.relative_path).read_bytes()[place.offset:place.offset + place.length]
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            assert archive.testzip() is None, index
            for record in archive.infolist():
                if record.filename == "archive/data/0" and record.file_size:
                    header = place.offset + record.header_offset
                    name, extra = data[record.header_offset + 26:][:2], data[record.header_offset + 28:][:2]
                    begin = header + 30 + int.from_bytes(name, "little") + int.from_bytes(extra, "little")
                    assert begin % (4096 if record.file_size >= 65536 else 64) == 0, (index, begin)
        loaded = torch.load(io.BytesIO(data), weights_only=True)
        entry = metadata.state_dict_metadata[index.fqn]
        if hasattr(entry, "chunks"):
            assert loaded.dtype == entry.properties.dtype, index
            chunk = next(chunk for chunk in entry.chunks if chunk.offsets == index.offset)
            assert loaded.shape == chunk.sizes, index
        checked += 1
    return checked


def main():
    with tempfile.TemporaryDirectory() as folder:
        for written_by in [1, 2, 3]:
            root = Path(folder) / str(written_by)
            root.mkdir()
            fixture("write", root, written_by, 12)
            directory = root / "step-00000012"
            fixture("verify", directory)
            tensors, items = load_alone(root, directory), check_items(directory)
            check_saved_as_pt(root, directory)
            print(f"written by {written_by}: {tensors} tensors, {items} items")
            for world in [written_by + 1]:
                on_world(world, load_divided, root, directory)
                print(f"  read by {world} ranks as Replicate, Shard(0), Shard(1)")


if __name__ == "__main__":
    main()
