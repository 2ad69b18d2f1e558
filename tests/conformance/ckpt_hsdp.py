"""PyTorch reads what two nodes of two workers save whose state is shared in each node: whole, and onto a mesh as its own HSDP lays
it out. It is what a run saves whose workers each have everything.
"""

import os
import socket
import subprocess
import tempfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from _ckpt import BIN, on_world, same

SECONDS_MAX = 240
DIFFERENCE_MAX = 2e-4

CONFIG = """
name = "shared"
seed = 5
[data]
files = ["rows.csv"]
[data.rows]
features = ["a", "b", "c"]
targets = ["y"]
row_id = "id"
[model]
d_model = 32
heads = 2
preset = "spatial"
spatial_depth = 1
temporal_depth = 1
[train]
epochs = 3
batch = 24
threads = 1
bucket_mib = 0.05
[cluster]
device = "cpu"
"""


def write(folder):
    noise = torch.rand(480, 4, generator=torch.Generator().manual_seed(1)) * 2 - 1
    lines = [f"{i},{a},{b},{c},{a * b + 0.5 * c + 0.1 * n}" for i, (a, b, c, n) in enumerate(noise.tolist())]
    (folder / "rows.csv").write_text("id,a,b,c,y\n" + "\n".join(lines) + "\n")
    (folder / "rows.toml").write_text(CONFIG)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def train(folder, runs, strategy, nodes, workers):
    """The newest checkpoint of a run on so many nodes, which are all of this machine."""
    port, agents = free_port(), []
    for node in range(1, nodes + 1):
        command = [(BIN / "enn").resolve(), "train", "rows.toml", "--lines", "--runs-dir", runs]
        command += ["--nproc-per-node", str(workers), "--set", f"train.strategy={strategy}"]
        if nodes > 1:
            command += ["--nnodes", str(nodes), "--rdzv-endpoint", f"127.0.0.1:{port}", "--local-addr", f"127.0.0.{node}"]
            command += ["--rdzv-conf", f"last_call_timeout=1,is_host={int(node == 1)}"]
        agents.append(subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    told = [agent.communicate(timeout=SECONDS_MAX)[0] for agent in agents]
    assert all(agent.returncode == 0 for agent in agents), "\n".join(told)
    assert nodes == 1 or "strategy hsdp: as asked, over 2 nodes of 2 workers" in told[0], told[0]
    return max((folder / runs).glob("*/checkpoints/step-*"))


def tensors(directory):
    metadata = FileSystemReader(directory).read_metadata().state_dict_metadata
    found = {name: entry for name, entry in metadata.items() if isinstance(entry, TensorStorageMetadata)}
    state = {name: torch.zeros(entry.size, dtype=entry.properties.dtype) for name, entry in found.items()}
    dcp.load(state, checkpoint_id=directory, no_dist=True)
    boxes = sum(len(entry.chunks) > 1 for entry in found.values())
    return state, boxes


def onto_mesh(rank, world, directory, whole):
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("replicate", "shard"))
    cut = lambda tensor: distribute_tensor(tensor, mesh, [Replicate(), Shard(0)], src_data_rank=None)
    names = [name for name, tensor in whole.items() if tensor.dim() and tensor.numel()]
    state = {name: cut(torch.zeros_like(whole[name])) for name in names}
    dcp.load(state, checkpoint_id=directory)
    for name in names:
        assert same(state[name].to_local(), cut(whole[name]).to_local()), (rank, name)


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        shared = train(folder, "shared", "hsdp", 2, 2)
        alone = train(folder, "alone", "ddp", 1, 4)
        (found, boxes), (expected, _) = tensors(shared), tensors(alone)
        assert found.keys() == expected.keys()
        assert boxes > 100, f"{boxes} tensors come from several ranks"
        worst = 0.0
        for key, tensor in found.items():
            # The bias of keys does not change a softmax: its gradient is rounding noise.
            if "attention.kv.bias" in key or key.startswith("progress"):
                continue
            worst = max(worst, (tensor.double() - expected[key].double()).abs().max().item() if tensor.numel() else 0.0)
        assert worst < DIFFERENCE_MAX, worst
        on_world(4, onto_mesh, shared, found)
        print(f"{len(found)} tensors, {boxes} of several ranks; the largest difference from ddp {worst:.1e}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
