"""A training script for tests on GPUs: FSDP2 with NCCL, bf16 and master weights in fp32.

Arguments: key=value of steps, width, depth, rows (per rank), mirror (steps between two mirrors), checkpoint (steps between two; 0: none), phase
(steps between switching mirrors on and off, to measure what they cost; 0: always on).
"""

import copy
import os
import time

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import enn.elastic as elastic
from enn.elastic import agreement, mirror_memory, shards
from enn.elastic.groups import RoundGroups
from train_common import digest, mark, options, wait_for_go

OPTIONS = options(steps=180, width=4096, depth=8, rows=8192, mirror=10, checkpoint=0, phase=0)
TIMES = {}
NEVER = 1 << 40


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.wide = torch.nn.Linear(width, 4 * width)
        self.narrow = torch.nn.Linear(4 * width, width)

    def forward(self, rows):
        return rows + self.narrow(torch.nn.functional.gelu(self.wide(self.norm(rows))))


def time_calls(owner, name):
    """Adds up the time of calls of a function, for the report."""
    function = getattr(owner, name)

    def timed(*args, **kwargs):
        begin = time.monotonic()
        try:
            return function(*args, **kwargs)
        finally:
            TIMES[name] = TIMES.get(name, 0) + time.monotonic() - begin

    setattr(owner, name, timed)


def initialise(model):
    torch.manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.01)


def main():
    elastic.init()
    device = torch.device("cuda", elastic.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.ones(8, 8, device=device) @ torch.ones(8, 8, device=device)
    width = OPTIONS["width"]
    with torch.device("meta"):
        skeleton = torch.nn.Sequential(*[Block(width) for _ in range(OPTIONS["depth"])])
    state = elastic.State(milliseconds=[])
    state.mirror(every=OPTIONS["mirror"])
    if OPTIONS["checkpoint"]:
        state.checkpoint(every=OPTIONS["checkpoint"], dir=os.environ["ENN_TEST_CHECKPOINTS"])
    for owner, name in [(RoundGroups, "form"), (agreement, "agree"), (shards, "copy_in"), (mirror_memory, "read")]:
        time_calls(owner, name)

    @elastic.run(state)
    def train(state):
        wait_for_go()
        begin = time.monotonic()
        mesh = init_device_mesh(device.type, (elastic.world_size(),))
        model = copy.deepcopy(skeleton)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for block in model:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        model.to_empty(device=device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        built = time.monotonic()
        state.sharded(model=model, optimizer=optimizer)
        if state.step == 0:
            initialise(model)
        joined = time.monotonic()
        first = state.step
        while state.step < OPTIONS["steps"]:
            if OPTIONS["phase"]:
                is_on = (state.step // OPTIONS["phase"]) % 2 == 0
                state._steps.sharded._mirror._every = OPTIONS["mirror"] if is_on else NEVER
            started = time.monotonic()
            optimizer.zero_grad(set_to_none=True)
            generator = torch.Generator(device=device)
            generator.manual_seed(state.step * 1000 + elastic.rank())
            rows = torch.randn(OPTIONS["rows"], width, device=device, generator=generator)
            (model(rows) - rows.roll(1, 1)).square().mean().backward()
            optimizer.step()
            state.milliseconds.append((time.monotonic() - started) * 1000)
            state.step += 1
            mark(state.step)
            if state.step == first + 1:
                parts = " ".join(f"{name}={seconds:.3f}" for name, seconds in TIMES.items())
                seconds = f"build={built - begin:.3f} sharded={joined - built:.3f} first_step={time.monotonic() - joined:.3f}"
                print(f"times rank={elastic.rank()} {seconds} of which {parts}", flush=True)
                TIMES.clear()
        tensors = [*model.parameters(), *(value for one in optimizer.state.values() for value in one.values())]
        return digest(getattr(tensor, "_local_tensor", tensor) for tensor in tensors), sum(one.numel() for one in model.parameters())

    found, count = train(state)
    print(f"end rank={elastic.rank()} step={state.step} shards={found}", flush=True)
    if OPTIONS["phase"] and elastic.rank() == 0:
        for name, wanted in (("with", 0), ("without", 1)):
            # The first phase warms up.
            phases = [number // OPTIONS["phase"] for number in range(OPTIONS["steps"])]
            chosen = [one for phase, one in zip(phases, state.milliseconds) if phase > 0 and phase % 2 == wanted]
            mean = sum(chosen) / len(chosen)
            print(f"milliseconds {name} mirrors: mean {mean:.3f} of {len(chosen)} steps; {count / 1e6:.0f} M parameters", flush=True)


if __name__ == "__main__":
    main()
