"""A training script for tests on GPUs: DDP with NCCL, where Python runs ahead of the device.

Arguments: key=value of steps, width, depth, ahead (1: Python runs ahead, behind the guard in the stream; 2: on the CPU, too; 3: each step
waits, behind the guard, on the CPU, too), unsafe (1: without waiting for the device and looking at the flag before a step is applied, and
without the guard), gloo (1: sums by Gloo), shared (1: ranks share a GPU under NCCL). Without a GPU it runs on the CPU.
"""

import faulthandler
import os
import time

import torch
from torch.nn.parallel import DistributedDataParallel

import enn.elastic as elastic
import enn.elastic.state
from train_common import digest, mark, options, wait_for_go

OPTIONS = options(steps=300, width=2048, depth=12, ahead=0, gloo=0, shared=0)

if OPTIONS["shared"]:
    # NCCL refuses two ranks of one host on a GPU. These seem to be on several hosts, and speak over sockets.
    os.environ["NCCL_HOSTID"] = str(os.getpid())
if OPTIONS["ahead"] >= 2:
    enn.elastic.state._runs_ahead = lambda device: True


def build(width, depth):
    torch.manual_seed(1)
    layers = []
    for _ in range(depth):
        layers += [torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width), torch.nn.GELU(), torch.nn.Dropout(0.1)]
    return torch.nn.Sequential(*layers)


if os.environ.get("ENN_TEST_LOG"):
    faulthandler.dump_traceback_later(60)


def main():
    has_gpu = torch.cuda.is_available()
    elastic.init("nccl" if has_gpu and not OPTIONS["gloo"] else "gloo")
    device = torch.device("cpu")
    if has_gpu:
        device = torch.device("cuda", elastic.local_rank() % torch.cuda.device_count())
    if has_gpu:
        torch.cuda.set_device(device)
    model = build(OPTIONS["width"], OPTIONS["depth"]).to(device)
    torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)
    state = elastic.State(run_ahead=OPTIONS["ahead"] in (1, 2), model=model, optimizer=optimizer, scheduler=scheduler)

    @elastic.run(state)
    def train(state):
        wait_for_go()
        net = DistributedDataParallel(state.model, device_ids=[device.index] if has_gpu else None, find_unused_parameters=True)
        begin = time.monotonic()
        first = state.step
        while state.step < OPTIONS["steps"]:
            optimizer.zero_grad(set_to_none=True)
            generator = torch.Generator(device=device)
            generator.manual_seed(state.step * 1000 + elastic.rank())
            rows = torch.randn(256, OPTIONS["width"], device=device, generator=generator)
            net(rows).square().mean().backward()
            optimizer.step()
            scheduler.step()
            state.step += 1
            mark(state.step)
        if has_gpu:
            torch.cuda.synchronize()
        return (time.monotonic() - begin) / max(1, state.step - first)

    torch.manual_seed(elastic.rank())
    seconds = train(state)
    moments = [value for one in optimizer.state.values() for value in one.values()]
    digests = f"model={digest(model.state_dict().values())} optimizer={digest(moments)}"
    print(f"end rank={elastic.rank()} step={state.step} {digests} draw={torch.rand((), device=device).item():.9f}", flush=True)
    print(f"milliseconds {seconds * 1000:.3f}", flush=True)


if __name__ == "__main__":
    main()
