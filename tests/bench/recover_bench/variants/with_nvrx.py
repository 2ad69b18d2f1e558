import datetime
import os

import nvidia_resiliency_ext.inprocess as inprocess
import torch
import torch.distributed as dist
import torch.nn.functional as F
from common import ARGUMENTS, BACKEND, batch, build, device_of, finish, mark
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT = os.path.join(ARGUMENTS.folder, "checkpoint.pt")
PORT = int(os.environ["MASTER_PORT"])
# Seconds between two looks of its monitors; the package's own value is 1.
INTERVAL = datetime.timedelta(seconds=float(os.environ["NVRX_INTERVAL"]))


@inprocess.Wrapper(
    store_kwargs={"port": PORT + 1},
    health_check=inprocess.health_check.CudaHealthCheck(),
    rank_assignment=inprocess.Compose(
        inprocess.rank_assignment.MaxActiveWorldSize(ARGUMENTS.workers), inprocess.rank_assignment.FillGaps()
    ),
    monitor_thread_interval=INTERVAL,
    monitor_process_interval=INTERVAL,
    heartbeat_interval=INTERVAL,
    progress_watchdog_interval=INTERVAL,
    last_call_wait=INTERVAL,
)
def train(base_store, wrapper: inprocess.CallWrapper = None):
    rank = int(os.environ["RANK"])
    device = device_of(rank)
    store = dist.PrefixStore(str(wrapper.iteration), base_store)
    timeout = datetime.timedelta(seconds=10) if BACKEND == "gloo" else datetime.timedelta(seconds=150)
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=ARGUMENTS.workers, timeout=timeout)
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
            with wrapper.atomic():
                torch.save({name: part.state_dict() for name, part in parts.items()} | {"step": step + 1}, CHECKPOINT + ".new")
                os.replace(CHECKPOINT + ".new", CHECKPOINT)
    finish(model, rank)
    dist.destroy_process_group()


def main():
    store = dist.TCPStore(os.environ["MASTER_ADDR"], PORT, is_master=False, wait_for_workers=False)
    train(store)


main()
