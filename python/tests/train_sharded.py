"""A training script for tests: FSDP2 on the CPU with BatchNorm, Dropout and a scheduler.

Arguments: key=value of steps, ms (sleep in a step), mirror (steps between two mirrors; 0: none), replicas (2: HSDP), tensor (1: tensor
parallelism instead), checkpoint (steps between two; 0: none).
ENN_TEST_HOLD=RANK:STEP:POINT stops a rank once, before step STEP + 1 ("forward"), in it behind the backward pass ("backward"), behind the
optimizer's step ("applied"), where it has written half of a mirror ("mirror"), or where it has met the other ranks ("met").
"""

import os
import time

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import enn.elastic as elastic
from enn.elastic import mirror
from enn.elastic.verdict import Verdict
from train_common import digest, mark, options, wait_for_go

OPTIONS = options(steps=30, ms=0, mirror=5, replicas=1, tensor=0, checkpoint=0)
WIDTH = 12
DIRECTORY = os.environ.get("ENN_TEST_DIR", "")


def hold(point, state):
    """Stops here if this rank is to be stopped here, and was not before."""
    wanted = os.environ.get("ENN_TEST_HOLD")
    held = os.path.join(DIRECTORY, "held")
    if wanted == f"{elastic.rank()}:{state.step}:{point}" and not os.path.exists(held):
        open(held, "w").close()
        while True:
            time.sleep(1)


def hold_in_copies(state):
    """Stops between the two halves of a copy for a mirror."""
    copy = mirror.torch_private.copy_tensors

    def halves(targets, sources):
        copy(targets[: len(targets) // 2], sources[: len(targets) // 2])
        hold("mirror", state)
        copy(targets[len(targets) // 2 :], sources[len(targets) // 2 :])

    class Halves:
        copy_tensors = staticmethod(halves)

    mirror.torch_private = Halves
    meet = Verdict._meet

    def meet_and_hold(self):
        found = meet(self)
        hold("met", state)
        return found

    Verdict._meet = meet_and_hold


def build():
    torch.manual_seed(1)
    layers = []
    for _ in range(3):
        layers += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH), torch.nn.ReLU(), torch.nn.Dropout(0.2)]
    return torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, 1))


def shard(model):
    if OPTIONS["tensor"]:
        mesh = init_device_mesh("cpu", (elastic.world_size(),))
        linear = [name for name, layer in model.named_children() if isinstance(layer, torch.nn.Linear)]
        plan = {name: ColwiseParallel(output_layouts=Replicate()) for name in linear}
        return parallelize_module(model, mesh, plan)
    replicas = OPTIONS["replicas"]
    world = elastic.world_size()
    if replicas > 1:
        mesh = init_device_mesh("cpu", (replicas, world // replicas), mesh_dim_names=("replicate", "shard"))
    else:
        mesh = init_device_mesh("cpu", (world,))
    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    elastic.init("gloo")
    state = elastic.State(rows=[])
    if OPTIONS["mirror"]:
        state.mirror(every=OPTIONS["mirror"])
    if OPTIONS["checkpoint"]:
        state.checkpoint(every=OPTIONS["checkpoint"], dir=os.environ["ENN_TEST_CHECKPOINTS"])
    hold_in_copies(state)

    @elastic.run(state)
    def train(state):
        wait_for_go()
        model = shard(build())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=OPTIONS["steps"])
        # Ranks that share each layer see the same rows.
        share = 0 if OPTIONS["tensor"] else elastic.rank()
        torch.manual_seed(share)
        state.sharded(model=model, optimizer=optimizer, scheduler=scheduler)
        while state.step < OPTIONS["steps"]:
            hold("forward", state)
            time.sleep(OPTIONS["ms"] / 1000)
            generator = torch.Generator().manual_seed(state.step * 1000 + share)
            rows = torch.randn(8, WIDTH, generator=generator)
            optimizer.zero_grad()
            loss = (model(rows) - rows.sum(1, keepdim=True)).square().mean()
            loss.backward()
            hold("backward", state)
            optimizer.step()
            hold("applied", state)
            scheduler.step()
            state.rows.append(len(rows))
            state.step += 1
            mark(state.step)
        tensors = [*model.parameters(), *(value for one in optimizer.state.values() for value in one.values())]
        return digest(getattr(tensor, "_local_tensor", tensor) for tensor in tensors), digest(model.buffers())

    found = train(state)
    print(f"end rank={elastic.rank()} step={state.step} digests={found} rows={len(state.rows)}:{sum(state.rows)}", flush=True)


if __name__ == "__main__":
    main()
