"""Trains a small language model whose parameters are sharded (FSDP2), and goes on when a worker dies.

    enn run --on-failure replace --spares 1 --nproc-per-node 2 examples/fsdp2/train.py
    torchrun --nproc-per-node 2 examples/fsdp2/train.py      # the same file, without recovery

No other rank has the shard of a worker that dies. So each rank keeps a copy of its shards in the memory of its node, where they outlive the
process (`state.mirror`). After a failure all ranks go back to the newest of these copies: fewer than `every` steps are done again.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import enn.elastic as elastic

WORDS = 64
LENGTH = 32
WIDTH = 64


class Block(torch.nn.Module):
    """Attention to earlier words, and a layer for each word."""

    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.before = torch.nn.LayerNorm(WIDTH)
        self.between = torch.nn.LayerNorm(WIDTH)
        self.words = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, hidden, mask):
        query = self.before(hidden)
        hidden = hidden + self.attention(query, query, query, attn_mask=mask, need_weights=False)[0]
        return hidden + self.words(self.between(hidden))


class Model(torch.nn.Module):
    """Guesses the next word at each place."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.blocks = torch.nn.ModuleList([Block() for _ in range(2)])
        self.output = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, words):
        mask = torch.ones(words.shape[1], words.shape[1], dtype=torch.bool, device=words.device).triu(1)
        hidden = self.embedding(words)
        for block in self.blocks:
            hidden = block(hidden, mask)
        return self.output(hidden)


def sharded_model(device: torch.device) -> torch.nn.Module:
    """Returns the model, of which each rank has a part."""
    # The same weights in all processes, whoever starts when.
    torch.manual_seed(0)
    model = Model().to(device)
    mesh = init_device_mesh(device.type, (elastic.world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def text(step: int, device: torch.device) -> torch.Tensor:
    """Returns what this rank reads in a step: rows in which each word follows from the one before, most of the time."""
    generator = torch.Generator().manual_seed(step * elastic.world_size() + elastic.rank())
    words = [torch.randint(WORDS, (8,), generator=generator)]
    for _ in range(LENGTH):
        surprise = torch.randint(WORDS, (8,), generator=generator)
        words.append(torch.where(torch.rand(8, generator=generator) < 0.1, surprise, (5 * words[-1] + 3) % WORDS))
    return torch.stack(words, dim=1).to(device)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--slow", type=float, default=0.0, help="seconds to sleep in each step, to have time for a kill")
    arguments = parser.parse_args()

    # It takes the place of torch.distributed.init_process_group().
    elastic.init()
    # What is sharded depends on the other ranks, and is made inside the function. Here is what is not.
    state = elastic.State(loss=0.0)
    state.mirror(every=10)

    @elastic.run(state)
    def train(state):
        """Entered again after each failure, in all ranks."""
        device = torch.device("cuda", elastic.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
        if device.type == "cuda":
            torch.cuda.set_device(device)
        model = sharded_model(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.steps)
        # From here on they have the state behind `state.step` steps.
        state.sharded(model=model, optimizer=optimizer, scheduler=scheduler)
        while state.step < arguments.steps:
            time.sleep(arguments.slow)
            words = text(state.step, device)
            loss = F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            state.loss = 0.9 * state.loss + 0.1 * loss.item()
            # Last: it says that the step is done.
            state.step += 1
            if elastic.rank() == 0 and state.step % 50 == 0:
                print(f"step {state.step}: loss {state.loss:.4f}", flush=True)

    train(state)
    if elastic.rank() == 0:
        end = "stopped" if state.is_stopped else "trained"
        print(f"{end}: {state.step} steps, loss {state.loss:.9f}", flush=True)


if __name__ == "__main__":
    main()
