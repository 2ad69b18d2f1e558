"""The order of the samples: it depends on the seed and on the epoch alone, not on the number of ranks or on faults."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.utils.data import DataLoader, get_worker_info

from . import random_streams
from .errors import ElasticError
from .worker import current_or_plain


class SeededBatch(list):
    """Indices of one batch. A worker process of a loader seeds its random states when it reads them.

    So what a data set draws for a batch depends neither on the number of worker processes nor on what they have done before.
    """

    seed = 0

    def __iter__(self):
        if get_worker_info() is not None:
            random.seed(self.seed)
            torch.manual_seed(self.seed)
            numpy = sys.modules.get("numpy")
            if numpy is not None:
                numpy.random.seed(self.seed % (1 << 32))
        return super().__iter__()

    def __getstate__(self):
        return self.seed

    def __setstate__(self, seed):
        self.seed = seed

    def __reduce__(self):
        return _seeded_batch, (list(self), self.seed)


def _seeded_batch(indices: list[int], seed: int) -> SeededBatch:
    batch = SeededBatch(indices)
    batch.seed = seed
    return batch


class Sampler:
    """A `batch_sampler` for `torch.utils.data.DataLoader` that shuffles anew in each epoch and knows how far the training is.

    `length` is the number of samples, `global_batch` the number of samples of one step over all ranks: a multiple of the number of ranks,
    each of which gets an equal share. The rest of an epoch, `length % global_batch` samples, is left out, other ones in each epoch.

    Each sample comes at most once in an epoch through any sequence of faults.

    `micro_batch` is the number of samples that a rank takes at once. A rank whose share is larger, because others are missing, takes several
    micro-batches for a step, and adds up their gradients:

        for rows, targets in state.sampler.batches(loader):
            with state.sampler.accumulate(net):
                loss = criterion(net(rows), targets) / state.sampler.micro_batches
                loss.backward()
            if state.sampler.is_step_complete:
                optimizer.step()
                optimizer.zero_grad()
                state.step += 1

    Without it a rank takes its share at once.

    Raises `ElasticError` if `global_batch` is not between 1 and `length`, or not a multiple of `micro_batch`.
    """

    def __init__(self, length: int, global_batch: int, seed: int = 0, micro_batch: int | None = None):
        if not 1 <= global_batch <= length:
            raise ElasticError(f"global_batch is {global_batch}, expected a number from 1 to the number of samples, {length}")
        if micro_batch is not None and (micro_batch < 1 or global_batch % micro_batch):
            raise ElasticError(f"micro_batch is {micro_batch}, expected a number that divides global_batch, {global_batch}")
        self.length = length
        self.global_batch = global_batch
        self.seed = seed
        self.micro_batch = micro_batch
        self.epoch = 0
        self._position = 0
        self._micro_batch_number = 0

    def __len__(self) -> int:
        """Number of steps in an epoch."""
        return self.length // self.global_batch

    @property
    def parts(self) -> int:
        """Number of equal parts of a step: ranks can share it if their number divides this one."""
        return self.global_batch // (self.micro_batch or 1)

    @property
    def micro_batches(self) -> int:
        """Number of batches that this rank takes for one step, in the present world."""
        return self._share() // self.micro_batch if self.micro_batch else 1

    @property
    def is_step_complete(self) -> bool:
        """Whether the present batch is the last one of its step, after which the optimizer steps."""
        return self._micro_batch_number == self.micro_batches

    @contextmanager
    def accumulate(self, module: torch.nn.Module) -> Iterator[None]:
        """Context of forward and backward with the present batch: gradients are exchanged in the last one of a step only.

        `module` is wrapped in `DistributedDataParallel` or sharded by `fully_shard`; with another one nothing is done.
        """
        if hasattr(module, "set_requires_gradient_sync"):
            module.set_requires_gradient_sync(self.is_step_complete)
            yield
        elif hasattr(module, "no_sync") and not self.is_step_complete:
            with module.no_sync():
                yield
        else:
            yield

    def __iter__(self) -> Iterator[SeededBatch]:
        """Yields the indices of this rank's share of each batch that is left of the epoch. It does not move on: `batches` does."""
        share = self._share()
        size = self.micro_batch or share
        begins = current_or_plain().rank * share
        epoch = self.epoch
        first = self._position
        generator = torch.Generator()
        generator.manual_seed(random_streams.digest("enn order", self.seed, epoch))
        order = torch.randperm(self.length, generator=generator)
        offsets = range(begins, begins + share, size)
        return (self._batch(order, epoch, step * self.global_batch + one, size) for step in range(first, len(self)) for one in offsets)

    def _batch(self, order: torch.Tensor, epoch: int, begin: int, share: int) -> SeededBatch:
        seed = random_streams.digest("enn batch", self.seed, epoch, begin)
        return _seeded_batch(order[begin : begin + share].tolist(), seed)

    def _share(self) -> int:
        world = current_or_plain().world_size
        if self.parts % world:
            sizes = [size for size in range(1, self.parts + 1) if self.parts % size == 0]
            what = f"global_batch {self.global_batch}"
            if self.micro_batch:
                what += f" in micro-batches of {self.micro_batch}"
            raise ElasticError(f"{what} cannot be shared equally by {world} ranks, but by {_few(sizes)}")
        return self.global_batch // world

    def batches(self, loader: DataLoader) -> Iterator:
        """Yields the batches of this rank that are left of the epoch, `micro_batches` for each step, and begins the next epoch at their end.

        `loader` is `DataLoader(data, batch_sampler=sampler, …)`, made once. What a loader has fetched ahead for an ended round is dropped.

        Raises `ElasticError` if the loader has another sampler, or ends before the epoch does.
        """
        if getattr(loader, "batch_sampler", None) is not self:
            raise ElasticError("this loader has another sampler: make it by DataLoader(data, batch_sampler=sampler, …)")
        worker = current_or_plain()
        # A loader draws a seed for its worker processes, which does not matter: each batch has one of its own.
        with random_streams.kept():
            iterator = iter(loader) if self._position < len(self) else iter(())
        worker.settle()
        while self._position < len(self):
            for number in range(self.micro_batches):
                batch = self._next(iterator, worker)
                self._micro_batch_number = number + 1
                if self.is_step_complete:
                    self._position += 1
                yield batch
                worker.check_end_of_step()
        self.epoch += 1
        self._position = 0

    def _next(self, iterator: Iterator, worker):
        worker.hold()
        try:
            return next(iterator)
        except StopIteration:
            raise ElasticError(f"the loader ended after batch {self._position} of epoch {self.epoch}, which has {len(self)}") from None
        finally:
            worker.release()

    def state_dict(self) -> dict:
        """Returns where the training is in the data."""
        return {"epoch": self.epoch, "position": self._position, "length": self.length, "global_batch": self.global_batch, "seed": self.seed}

    def load_state_dict(self, state: dict) -> None:
        """Continues there. Raises `ElasticError` if the state is that of another sampler."""
        for name in ("length", "global_batch", "seed"):
            if state[name] != getattr(self, name):
                raise ElasticError(f"the state is that of a sampler with {name} {state[name]}, and this one has {getattr(self, name)}")
        self.epoch = state["epoch"]
        self._position = state["position"]


def _few(sizes: list[int]) -> str:
    if len(sizes) <= 12:
        return ", ".join(map(str, sizes))
    return ", ".join(map(str, sizes[:6])) + ", …, " + ", ".join(map(str, sizes[-6:]))
