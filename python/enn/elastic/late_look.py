"""The look at the round right before an optimizer's first change, behind all that its step prepares in Python.

The device idles from the end of the backward pass, which the look waits for, until the optimizer's first kernel. What `step()` does before
that kernel takes Python a tenth of a millisecond or more, so it is done while the device is still busy. Which function of torch changes
something first is known for the optimizers of `_FIRST_CHANGES`; others look before their step.
"""

import threading

import torch
from torch.optim.optimizer import _default_to_fused_or_foreach

# By the exact class: the first functions that change anything, of its fused implementation and of that for lists of tensors.
_FIRST_CHANGES = {
    torch.optim.Adam: ("_foreach_add_", "_foreach_add_"),
    torch.optim.AdamW: ("_foreach_add_", "_foreach_add_"),
    torch.optim.SGD: ("_fused_sgd_", None),
}


def first_change(optimizer: torch.optim.Optimizer) -> str | None:
    """Returns the name in `torch` of what changes something first in the optimizer's step, or `None` if that is not known."""
    found = {_of_group(optimizer, group) for group in optimizer.param_groups}
    return found.pop() if len(found) == 1 else None


def _of_group(optimizer: torch.optim.Optimizer, group: dict) -> str | None:
    fused, listed = _FIRST_CHANGES.get(type(optimizer), (None, None))
    if any(group.get(name) for name in ("capturable", "differentiable")):
        return None
    if group.get("fused"):
        return fused
    if group.get("foreach") is None and group.get("fused") is None and not isinstance(group["lr"], torch.Tensor):
        return listed if _default_to_fused_or_foreach(group["params"], False, use_fused=False)[1] else None
    return listed if group.get("foreach") else None


class LateLook:
    """Calls `look` in place of one function, before it, the first time that the thread which has armed it calls that function."""

    def __init__(self):
        self._name: str | None = None
        self._function = None
        self._look = None
        self._thread = 0

    def arm(self, name: str, look) -> None:
        """From now on, until `disarm`, the function looks first."""
        self.disarm()
        self._name = name
        self._function = getattr(torch, name)
        self._look = look
        self._thread = threading.get_ident()
        setattr(torch, name, self._call)

    def disarm(self) -> bool:
        """Puts the function back; returns whether nobody has looked."""
        if self._name is None:
            return False
        setattr(torch, self._name, self._function)
        self._name = None
        return True

    def _call(self, *args, **kwargs):
        if threading.get_ident() == self._thread and self.disarm():
            self._look()
        return self._function(*args, **kwargs)
