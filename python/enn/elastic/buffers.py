"""The buffers of the registered modules (statistics of BatchNorm, for instance) and copies of all of them in one piece of memory."""

from collections.abc import Iterable

import torch

from . import torch_private

_ALIGNMENT_BYTES = 16


class BufferCopy:
    """A copy of all buffers. `flat` (uint8) is on the buffers' device; `views` are its parts with the buffers' shapes and dtypes."""

    def __init__(self, flat: torch.Tensor, views: list[torch.Tensor]):
        self.flat = flat
        self.views = views


class Buffers:
    """The buffers that a `state_dict` of the modules has. Others are not part of the state.

    Forward changes the buffers of a module that an optimizer trains, each rank its own; these are `private`. Buffers of other modules, such
    as an average of the weights, change after the optimizer's step.
    """

    def __init__(self, modules: Iterable[torch.nn.Module], trained: set[int]):
        self._places = []
        self._private = []
        seen = set()
        for module in modules:
            is_private = any(id(parameter) in trained for parameter in module.parameters())
            for part in module.modules():
                for name, buffer in part._buffers.items():
                    is_state = buffer is not None and name not in part._non_persistent_buffers_set
                    if is_state and id(buffer) not in seen:
                        seen.add(id(buffer))
                        self._places.append((part, name))
                        self._private.append(is_private)
        self._layout = self._measure()

    def tensors(self) -> list[torch.Tensor]:
        """Returns the buffers as they are now: user code may have replaced some."""
        return [part._buffers[name] for part, name in self._places]

    def _measure(self) -> list[tuple[int, int]]:
        layout = []
        self.bytes = 0
        for buffer in self.tensors():
            size = buffer.numel() * buffer.element_size()
            layout.append((self.bytes, size))
            self.bytes += -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        return layout

    @property
    def device(self) -> torch.device:
        return self.tensors()[0].device if self._places else torch.device("cpu")

    @property
    def is_on_device(self) -> bool:
        """Whether copies into host memory are under way for a while."""
        return self.bytes > 0 and self.device.type == "cuda"

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Returns the parts of a flat copy (uint8, `bytes` long) with the shapes of the buffers."""
        parts = zip(self._layout, self.tensors(), strict=True)
        return [flat[begin : begin + size].view(buffer.dtype).view(buffer.shape) for (begin, size), buffer in parts]

    def new_copy(self) -> BufferCopy:
        """Returns room for a copy."""
        flat = torch.empty(self.bytes, dtype=torch.uint8, device=self.device)
        return BufferCopy(flat, self.views(flat))

    def capture(self, into: BufferCopy) -> None:
        """Copies the buffers, in stream order."""
        tensors = self.tensors()
        self._copy(into.views, tensors, range(len(tensors)))

    def restore(self, copy: BufferCopy, private_only: bool = False) -> None:
        """Puts the buffers back, or only those that are private to the rank."""
        chosen = [index for index, is_private in enumerate(self._private) if is_private or not private_only]
        self._copy(self.tensors(), copy.views, chosen)

    def _copy(self, targets: list[torch.Tensor], sources: list[torch.Tensor], chosen: Iterable[int]) -> None:
        # Only tensors of one dtype are copied by one kernel.
        groups: dict[torch.dtype, list[int]] = {}
        for index in chosen:
            groups.setdefault(sources[index].dtype, []).append(index)
        for group in groups.values():
            torch_private.copy_tensors([targets[index] for index in group], [sources[index] for index in group])

    def from_bytes(self, data: bytes) -> BufferCopy | None:
        """Returns a copy that another process has written, or `None` if it has other buffers."""
        if len(data) != self.bytes:
            return None
        copy = self.new_copy()
        if data:
            copy.flat.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        return copy
