import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import ARGUMENTS, BACKEND, batch, build, device_of, finish, mark
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT = os.path.join(ARGUMENTS.folder, "checkpoint.pt")


def main():
    device = device_of(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(BACKEND)
    rank = dist.get_rank()
    model, optimizer, scheduler = build(device)
    first = 0
    if os.path.exists(CHECKPOINT):
        saved = torch.load(CHECKPOINT, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        first = saved["step"]
    net = DistributedDataParallel(model, find_unused_parameters=True)
    for step in range(first, ARGUMENTS.steps):
        rows, targets = batch(step, rank, device)
        optimizer.zero_grad()
        loss = F.mse_loss(net(rows), targets)
        loss.backward()
        optimizer.step()
        scheduler.step()
        mark(step, rank, loss)
        if rank == 0 and (step + 1) % ARGUMENTS.every == 0:
            parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
            torch.save({name: part.state_dict() for name, part in parts.items()} | {"step": step + 1}, CHECKPOINT + ".new")
            os.replace(CHECKPOINT + ".new", CHECKPOINT)
    finish(model, rank)
    dist.destroy_process_group()


main()
