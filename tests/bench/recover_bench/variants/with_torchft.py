import datetime
import os

import torch.nn.functional as F
from common import ARGUMENTS, batch, build, device_of, finish, mark
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torchft import Manager, Optimizer, ProcessGroupGloo, ProcessGroupNCCL


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
    weights = list(model.parameters())
    while manager.current_step() < ARGUMENTS.steps:
        step = manager.current_step()
        rows, targets = batch(step, rank, device)
        optimizer.zero_grad()
        loss = F.mse_loss(model(rows), targets)
        loss.backward()
        # Its own DistributedDataParallel ends the survivors, too, when a sum breaks on Gloo.
        gradients = [weight.grad for weight in weights]
        flat = _flatten_dense_tensors(gradients)
        manager.allreduce(flat).wait()
        for gradient, mean in zip(gradients, _unflatten_dense_tensors(flat, gradients)):
            gradient.copy_(mean)
        optimizer.step()
        if manager.current_step() > step:
            scheduler.step()
            # A process that is healed has come further by this step.
            mark(manager.current_step() - 1, rank, loss)
    finish(model, rank)


main()
