import datetime
import os

import torch.nn.functional as F
from common import ARGUMENTS, batch, build, device_of, finish, mark
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo, ProcessGroupNCCL


def main():
    device = device_of(0)
    rank = int(os.environ["REPLICA_GROUP_ID"])
    model, inner, scheduler = build(device)

    def load(saved):
        model.load_state_dict(saved["model"])
        inner.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])

    group = ProcessGroupGloo if device.type == "cpu" else ProcessGroupNCCL
    manager = Manager(
        pg=group(timeout=datetime.timedelta(seconds=5)),
        min_replica_size=int(os.environ["TORCHFT_MIN_REPLICAS"]),
        load_state_dict=load,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict(), "scheduler": scheduler.state_dict()},
        replica_id=f"bench_{rank}",
        timeout=datetime.timedelta(seconds=10),
    )
    optimizer = Optimizer(manager, inner)
    net = DistributedDataParallel(manager, model)
    while manager.current_step() < ARGUMENTS.steps:
        step = manager.current_step()
        rows, targets = batch(step, rank, device)
        optimizer.zero_grad()
        loss = F.mse_loss(net(rows), targets)
        loss.backward()
        optimizer.step()
        if manager.current_step() > step:
            scheduler.step()
            mark(step, rank, loss)
    finish(model, rank)


main()
