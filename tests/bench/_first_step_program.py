"""A DDP script as people write it, with nothing of a launcher's in it: a model, a loader, some steps. When a step has ended on a rank, the
rank prints which, and when; the bench waits for the last rank's line.

    first_step_program.py [--compile] [--loader-workers N] [--steps N] [--hold]
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--compile", action="store_true")
    options.add_argument("--loader-workers", type=int, default=0)
    options.add_argument("--steps", type=int, default=3)
    options.add_argument("--hold", action="store_true", help="wait after the last step until the process is ended")
    options = options.parse_args()
    cuda = torch.cuda.is_available()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).to(device)
    net = DistributedDataParallel(model, device_ids=[local_rank] if cuda else None)
    if options.compile:
        net = torch.compile(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(4096, 64)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data), num_workers=options.loader_workers)
    for step, (x, y) in zip(range(options.steps), loader):
        loss = torch.nn.functional.mse_loss(net(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss.item()
        print(f"step {step} rank {dist.get_rank()} pid {os.getpid()} restart {os.environ['TORCHELASTIC_RESTART_COUNT']} "
              f"at {time.time():.4f} loss {value:.6f}", flush=True)
    while options.hold:
        time.sleep(1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
