"""What the checkpoint checks share: the fixture binary, expected tensors, small worlds of gloo processes."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

BIN = Path(os.environ.get("ENN_BIN_DIR", "target/release"))
WORLD_SECONDS_MAX = 120


def fixture(*args):
    done = subprocess.run([BIN / "ckpt_fixture", *map(str, args)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"ckpt_fixture {args}: {done.stderr}"
    return done.stdout


def load_raw(folder, index):
    """Tensors that the fixture wrote as raw bytes, by name."""
    tensors = {}
    for name, entry in index.items():
        if "error" in entry:
            tensors[name] = entry["error"]
            continue
        dtype = getattr(torch, entry["dtype"])
        data = bytearray((Path(folder) / entry["file"]).read_bytes())
        flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
        tensors[name] = flat.reshape(entry["shape"])
    return tensors


def expected(root):
    return load_raw(root / "expected", json.loads((root / "expected/index.json").read_text()))


def same(one, other):
    """Equal to the last bit; NaNs are patterns like any other."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    raw = lambda tensor: tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return one.numel() == 0 or torch.equal(raw(one), raw(other))


def _enter(rank, world, path, function, args):
    torch.set_num_threads(1)
    store = dist.FileStore(path, world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    function(rank, world, *args)
    # Nobody leaves before all are done: the group is not taken down, which in PyTorch 2.6 may wait for one of its threads for ever; and at
    # its end Python may take down threads of PyTorch's that still run: "terminate called without an active exception".
    store.add("over", 1)
    end = time.monotonic() + WORLD_SECONDS_MAX
    while store.add("over", 0) < world and time.monotonic() < end:
        time.sleep(0.01)
    sys.stdout.flush()
    os._exit(0)


def on_world(world, function, *args):
    """Runs function(rank, world, *args) in `world` processes that form a gloo group."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_enter, (world, os.path.join(folder, "store"), function, args), nprocs=world, join=True)
