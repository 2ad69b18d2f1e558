"""The programs of launcher_preload.py: training as people write it, with what makes a forked process different from an executed one."""

from _launcher_programs import TRAIN

SNAPSHOT = TRAIN + """
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
net = DistributedDataParallel(model())
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
path = Path(os.environ["OUT"]) / "snapshot.pt"
first = 0
if path.exists():
    saved = torch.load(path, weights_only=True)
    net.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["step"]
for step, (x, y) in enumerate(batches()):
    if step < first:
        continue
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(net(x), y).backward()
    optimizer.step()
    if RANK == "0":
        torch.save({"model": net.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, f"{path}.part")
        os.replace(f"{path}.part", path)
    dist.barrier()
    if step == 2 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ.get("FAILS"):
        os._exit(9 if RANK == "1" else 0)
say({"weights": digest(net.module.parameters()), "first": first, "restart": os.environ["TORCHELASTIC_RESTART_COUNT"]})
dist.destroy_process_group()
"""

DCP = TRAIN + """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group("gloo")
def sharded():
    net = model()
    fully_shard(net, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return net, torch.optim.AdamW(net.parameters(), lr=1e-2)
net, optimizer = sharded()
for x, y in batches():
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(net(x), y).backward()
    optimizer.step()
weights, state = get_state_dict(net, optimizer)
dcp.save({"model": weights, "optimizer": state}, checkpoint_id=os.environ["OUT"] + "/checkpoint")
other, fresh = sharded()
weights, state = get_state_dict(other, fresh)
dcp.load({"model": weights, "optimizer": state}, checkpoint_id=os.environ["OUT"] + "/checkpoint")
set_state_dict(other, fresh, model_state_dict=weights, optim_state_dict=state)
say([digest([p.full_tensor() for p in each.parameters()]) for each in (net, other)])
# PyTorch 2.11 sometimes aborts where such a process ends, under either launcher: a thread of its own is still running.
dist.barrier()
os._exit(0)
"""

LOADER = TRAIN + """
from torch.utils.data import DataLoader, Dataset, DistributedSampler
class Rows(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, row):
        generator = torch.Generator().manual_seed(row)
        return torch.randn(8, generator=generator), torch.randn(4, generator=generator)
if __name__ == "__main__":
    dist.init_process_group("gloo")
    weights = {}
    for method in ("fork", "spawn"):
        net = torch.nn.parallel.DistributedDataParallel(model())
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        data = Rows()
        loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data), num_workers=2, multiprocessing_context=method)
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(net(x), y).backward()
            optimizer.step()
        weights[method] = digest(net.module.parameters())
    say(weights)
    dist.destroy_process_group()
"""

COMPILED = TRAIN + """
dist.init_process_group("gloo")
net = model()
compiled = torch.compile(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
for x, y in batches():
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(compiled(x), y)
    loss.backward()
    optimizer.step()
say({"loss": round(loss.item(), 4), "compiled": torch._dynamo.utils.counters["stats"]["unique_graphs"]})
dist.destroy_process_group()
"""

SEEDS = TRAIN + """
say([torch.initial_seed(), torch.rand(()).item(), os.urandom(1).hex()])
"""

ENVIRONMENT = """
import os
os.environ["OMP_NUM_THREADS"] = "2"
""" + TRAIN.replace("torch.set_num_threads(1)", "") + """
say(torch.get_num_threads())
"""

LATE = TRAIN + """
os.environ.update(OMP_NUM_THREADS="2", CUBLAS_WORKSPACE_CONFIG=":4096:8", PYTORCH_NVML_BASED_CUDA_CHECK="1", MKL_VERBOSE="0")
import torch._dynamo
say(torch.get_num_threads())
"""

EXCEPTION = TRAIN + """
dist.init_process_group("gloo")
def deep():
    raise RuntimeError("the cause")
if RANK == "1":
    deep()
dist.barrier()
"""
