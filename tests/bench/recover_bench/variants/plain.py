import os

import torch.distributed as dist
import torch.nn.functional as F
from common import ARGUMENTS, BACKEND, batch, build, device_of, finish, mark
from torch.nn.parallel import DistributedDataParallel


def main():
    device = device_of(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(BACKEND)
    rank = dist.get_rank()
    model, optimizer, scheduler = build(device)
    net = DistributedDataParallel(model, find_unused_parameters=True)
    for step in range(ARGUMENTS.steps):
        rows, targets = batch(step, rank, device)
        optimizer.zero_grad()
        loss = F.mse_loss(net(rows), targets)
        loss.backward()
        optimizer.step()
        scheduler.step()
        mark(step, rank, loss)
    finish(model, rank)
    dist.destroy_process_group()


main()
