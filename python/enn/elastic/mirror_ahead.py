"""What a spare does with the mirrors of the seat that it may get: it maps them and makes them known to its device before it is needed."""

import threading
import time
from pathlib import Path

import torch

from . import mirror_memory, torch_private

_LOOK_SECONDS = 0.5


class MappedAhead:
    """A file of which this process has the tensors (uint8), fit for asynchronous copies if `is_registered`."""

    def __init__(self, flat: torch.Tensor, is_registered: bool):
        self.flat = flat
        self.is_registered = is_registered


_mapped: dict[tuple[Path, int], MappedAhead] = {}


def begin(seats: Path, rank: int) -> None:
    """Waits in a thread for the mirrors of a rank on this node, and maps them. For a spare whose device is ready, and is that of this rank."""
    device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
    threading.Thread(target=_map_all, args=(seats, rank, device), name="enn-mirrors-ahead", daemon=True).start()


def _map_all(seats: Path, rank: int, device: int | None) -> None:
    if device is not None:
        # A thread begins with device 0.
        torch.cuda.set_device(device)
    missing = {0, 1}
    while missing:
        for slot in sorted(missing):
            found = mirror_memory.record(mirror_memory.path_of(seats, rank, slot))
            if found is not None:
                flat, _ = mirror_memory.read(found)
                is_registered = device is not None and torch_private.register_host_memory(flat)
                _mapped[found.path, found.tensor_bytes] = MappedAhead(flat, is_registered)
                missing.remove(slot)
        time.sleep(_LOOK_SECONDS)


def look_up(path: Path, tensor_bytes: int) -> MappedAhead | None:
    """Returns the tensors of a file, if they were mapped."""
    return _mapped.get((path, tensor_bytes))


def take(path: Path, tensor_bytes: int) -> MappedAhead | None:
    """Returns them once: the caller ends their registration."""
    return _mapped.pop((path, tensor_bytes), None)
