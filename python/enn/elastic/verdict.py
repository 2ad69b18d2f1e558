"""Whether a step counts, in a state of which several ranks have the same part.

Nothing is repeated there if all ranks have done the same step. So a step is applied in two moves: each rank, its gradients complete, meets
all others; then it asks the store of the round. The first answer holds for all: a rank that has met all others says that the step counts;
one that could not meet them says that it does not.
"""

import torch
import torch.distributed as dist

from .interruption import Interruption

_KEY = "verdict"


class Verdict:
    """The answers of one round, whose ranks stand after `position` commits. `device` is one that the default group sends from."""

    def __init__(self, store: dist.Store, interruption: Interruption, device: torch.device, position: int):
        self._store = store
        self._interruption = interruption
        self._token = torch.zeros(1, device=device)
        self._store.compare_set(_KEY, "", str(position))

    def counts(self, position: int, patience: float) -> bool:
        """Returns whether the step that leads to `position` is applied. Called where all gradients of this rank are known to be right.

        If it is not, waits up to `patience` seconds to hear that the round is over.
        """
        answer = position if self._meet() else -position
        found = int(self._store.compare_set(_KEY, str(position - 1), str(answer)))
        if found == position:
            return True
        self._interruption.wait_until_over(patience)
        return False

    def _meet(self) -> bool:
        """Returns whether all ranks have come here for sure."""
        try:
            self._token.fill_(1)
            dist.all_reduce(self._token)
            met = int(self._token.item())
            # The flag is set before NCCL's groups are aborted, after which results are wrong.
            return met == dist.get_world_size() and not self._interruption.is_over()
        except Exception:
            return False
