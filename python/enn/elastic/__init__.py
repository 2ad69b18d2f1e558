"""Training that goes on when a process dies.

    import enn.elastic as elastic

    elastic.init()                          # instead of torch.distributed.init_process_group()
    state = elastic.State(model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler)

    @elastic.run(state)
    def train(state):                       # entered again after each failure
        net = DistributedDataParallel(state.model)
        for batch in state.sampler.batches(loader):
            ...
            state.optimizer.step()
            state.scheduler.step()
            state.step += 1                 # the last statement of a step

    train(state)

Models whose parameters are sharded are built inside the function and get their state there: see `State.sharded`, `State.mirror` and
`State.checkpoint`.

Under `torchrun`, or started by itself, the same script runs unchanged and does not recover.
"""

from .errors import ElasticError, Interrupted
from .recovery import run
from .sampler import Sampler
from .state import State
from .worker import current, init

__all__ = ["ElasticError", "Interrupted", "Sampler", "State", "init", "local_rank", "rank", "run", "world_size"]


def rank() -> int:
    """Returns the rank of this process among all. A spare waits here for its seat. Raises `ElasticError` before `init`."""
    return current().rank


def local_rank() -> int:
    """Returns the index of this process on its node, which is that of its device. A spare waits here for its seat."""
    return current().local_rank


def world_size() -> int:
    """Returns the number of ranks. A spare waits here for its seat."""
    return current().world_size
