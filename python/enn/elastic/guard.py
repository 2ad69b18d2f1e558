"""The guard in the stream: the device itself skips steps of fused optimizers that are enqueued behind an aborted collective.

Before each optimizer step a flag in pinned memory is copied, in stream order, into the `found_inf` of fused optimizers, which then change
nothing where it is 1. The control thread sets the flag before it aborts the groups, so a step whose gradients may be wrong reads 1.
A copy of what each step has read says afterwards which steps were applied.

A rank that has skipped a step must not do the next one with ranks that do not know yet that the round is over: its gradients would be those of
old weights. So the stream stands still behind the flag until all ranks have heard.
"""

import torch

from . import torch_private
from .errors import ElasticError

# How many steps the device may be behind: before a step is enqueued, that many steps before it is waited for.
STEPS_AHEAD = 2
# Steps whose verdicts are kept: those that are behind, the one that is being enqueued, and the last one that was applied.
_SLOTS = STEPS_AHEAD + 2


class Guard:
    """The flag, and the verdicts of the last steps. `device` is that of the parameters."""

    def __init__(self, device: torch.device):
        on_device = device.type == "cuda"
        pinned = {"dtype": torch.float32, "device": "cpu", "pin_memory": on_device}
        self._flag = torch.zeros((), **pinned)
        self._value = torch.zeros((), dtype=torch.float32, device=device)
        self._gate = torch.zeros((), **(pinned | {"dtype": torch.int32}))
        self._stand_at_gate = torch_private.stream_wait(self._gate) if on_device else None
        self._verdicts = list(torch.zeros(_SLOTS, **pinned).unbind())
        self._events = [torch.cuda.Event() for _ in range(_SLOTS)] if on_device else None
        self._replaced: dict[int, torch.Tensor | None] = {}

    def discard_from_now(self) -> None:
        """Steps that the device comes to from now on are not applied. Called by the control thread, before it aborts groups."""
        self._gate.fill_(1)
        self._flag.fill_(1.0)

    def let_go(self) -> None:
        """The stream goes on. Called by the control thread, before it aborts groups, which may wait for the stream."""
        self._gate.zero_()

    def reopen(self) -> None:
        """A round begins: steps are applied again."""
        self._gate.zero_()
        self._flag.zero_()

    def read(self, step: int, may_stand: bool) -> None:
        """Enqueues the look at the flag which decides whether this step is applied. Behind it the stream may stand still for a moment."""
        self._value.copy_(self._flag, non_blocking=True)
        self._verdicts[step % _SLOTS].copy_(self._value, non_blocking=True)
        if may_stand and self._stand_at_gate is not None:
            self._stand_at_gate()

    def put_into(self, optimizer: torch.optim.Optimizer) -> None:
        """Makes the step of an optimizer that follows depend on the last look. What a `GradScaler` has found counts, too."""
        found = getattr(optimizer, "found_inf", None)
        self._replaced[id(optimizer)] = found
        optimizer.found_inf = self._value if found is None else torch.maximum(found, self._value.to(found.device))

    def take_out(self, optimizer: torch.optim.Optimizer) -> None:
        """Reverses `put_into`, if it was called."""
        if id(optimizer) not in self._replaced:
            return
        found = self._replaced.pop(id(optimizer))
        if found is None:
            del optimizer.found_inf
        else:
            optimizer.found_inf = found

    def mark(self, step: int) -> None:
        """What has been enqueued until now is what `wait` waits for."""
        if self._events is not None:
            self._events[step % _SLOTS].record()

    def wait(self, step: int) -> None:
        """Waits until the device has come to the mark of a step."""
        if self._events is not None:
            self._events[step % _SLOTS].synchronize()

    def was_applied(self, step: int) -> bool:
        """Returns the verdict on a step that the device has done."""
        return self._verdicts[step % _SLOTS].item() == 0


def is_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether an optimizer can skip a step on the device."""
    return getattr(optimizer, "_step_supports_amp_scaling", False) and all(group.get("fused") for group in optimizer.param_groups)


def check_fused(optimizers: dict) -> None:
    """Raises `ElasticError` if an optimizer cannot skip a step on the device."""
    for name, optimizer in optimizers.items():
        if not is_fused(optimizer):
            raise ElasticError(
                f"State(run_ahead=True): state.{name} is {type(optimizer).__name__} without fused=True, which cannot skip a step on the device: "
                "make it with fused=True, or leave out run_ahead"
            )
