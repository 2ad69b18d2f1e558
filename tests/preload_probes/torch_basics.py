"""Trains a little with DistributedDataParallel on Gloo, one process, and prints what is around it."""

import os
import sys

import seen

BEFORE = set(sys.modules)
import torch  # noqa: E402

seen.show("torch", (torch.__version__, torch.get_num_threads(), torch.get_num_interop_threads(),
                    torch.get_default_dtype()))
seen.show("threads", len(os.listdir("/proc/self/task")))
for name in sorted(set(sys.modules) - BEFORE):
    seen.show("module", name)
seen.show("unseeded", torch.initial_seed() == torch.default_generator.initial_seed() != 67280421310721)
seen.show("bad fork", torch.cuda._is_in_bad_fork())
seen.show("variables", sorted(name for name in os.environ if "TORCH" in name))
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(1)
layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
model = DistributedDataParallel(layers)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    optimizer.step()
    seen.show("loss", loss.item())
torch.save(model.state_dict(), "saved.pt")
seen.show("saved", sorted(torch.load("saved.pt")))
dist.destroy_process_group()
