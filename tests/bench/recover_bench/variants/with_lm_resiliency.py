import os

import torch.distributed as dist
import torch.nn.functional as F
from common import ARGUMENTS, BACKEND, batch, build, device_of, finish, mark
from lm_resiliency import InMemoryCkptConfig, enable_resiliency
from torch.nn.parallel import DistributedDataParallel


def main():
    device = device_of(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(BACKEND)
    rank = dist.get_rank()
    model, optimizer, scheduler = build(device)
    net = DistributedDataParallel(model, find_unused_parameters=True)

    def load(saved):
        # It was captured in the optimizer's step, before that of the schedule.
        scheduler.load_state_dict(saved)
        scheduler.step()

    # It would make groups with NCCL otherwise, also where nothing is to be detected.
    group = dist.new_group(backend="gloo") if device.type == "cpu" else None
    resiliency = enable_resiliency(
        net,
        optimizer,
        interval=ARGUMENTS.every,
        enable_detection=False,
        checkpoint=InMemoryCkptConfig(
            replication_jump=1,
            disk_flush_interval=ARGUMENTS.every,
            disk_folder=os.path.join(ARGUMENTS.folder, "checkpoints"),
            pin_memory=device.type == "cuda",
        ),
        group=group,
        nccl_group=group,
        device=device,
        extra_state_fn=scheduler.state_dict,
        load_extra_state_fn=load,
    )
    for step in range(resiliency.step_count, ARGUMENTS.steps):
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
