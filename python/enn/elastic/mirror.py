"""Copies of this rank's part of a sharded state in host memory, made every so many steps beside the training.

**Invariant:** before this rank contributes to the step after the next one, its copy of a step is whole. So while any rank overwrites the
older of its two copies, all ranks have the newer one.
"""

import threading
from pathlib import Path

import torch

from . import mirror_ahead, mirror_memory, records, shards, torch_private, transfer
from .mirror_memory import MirrorFile, MirrorRecord
from .neighbour import Neighbour


class Mirror:
    """The two copies of a rank. `directory` is that of the node's seats; a copy is made where the number of commits is a multiple of `every`."""

    def __init__(self, state, directory: Path, every: int):
        self._state = state
        self._directory = directory
        self._every = every
        self._rank = None
        self._signature = ""
        self._files: list[MirrorFile | None] = [None, None]
        self._targets: list[tuple[list, list[torch.Tensor]] | None] = [None, None]
        self._slot = 1
        self._preparing: threading.Thread | None = None
        self._error: Exception | None = None
        self._pending = None
        self._stream = None
        self._neighbour: Neighbour | None = None

    def begin_round(self, rank: int, signature: str, position: int, neighbour: Neighbour | None) -> None:
        """The rank stands after `position` commits; copies of later steps count no more. `neighbour` takes second copies."""
        self._neighbour = neighbour
        if rank != self._rank:
            self.close()
            self._rank = rank
        self._signature = signature
        self._pending = None
        self._slot = 1
        for record in mirror_memory.records(self._directory):
            if record.position > position:
                mirror_memory.invalidate(record)
            elif record.rank == rank and record.position == position:
                self._slot = int(record.path.name.rsplit("-", 1)[1])

    def newest(self) -> MirrorRecord | None:
        """Returns the newest whole copy of this rank."""
        mine = [one for one in mirror_memory.records(self._directory) if one.rank == self._rank and one.signature == self._signature]
        return max(mine, key=lambda one: one.position, default=None)

    def flat_of(self, record: MirrorRecord) -> torch.Tensor | None:
        """Returns the tensors of a copy in a file that this process has open, or has mapped ahead."""
        ahead = mirror_ahead.look_up(record.path, record.tensor_bytes)
        opened = next((file.flat for file in self._files if file is not None and file.path == record.path), None)
        return ahead.flat if opened is None and ahead is not None else opened

    def before_step(self, position: int) -> None:
        """The step that leads to `position` is about to change the tensors: the device does so after the copy of an earlier step."""
        if self._neighbour is not None and (position + 1) % self._every == 0:
            # What this rank contributes next lets others overwrite the older one of their copies.
            self._neighbour.wait()
        if self._pending is not None:
            torch.cuda.current_stream().wait_event(self._pending[0])

    def publish(self) -> None:
        """The device has come to the step: the copy of an earlier one counts from now on."""
        if self._pending is not None:
            _, slot, record = self._pending
            self._pending = None
            self._end(slot, record)

    def _end(self, slot: int, record: records.Record) -> None:
        self._files[slot].end(self._rank, self._signature, record.position, records.pack(record))
        if self._neighbour is not None:
            self._neighbour.send(self._files[slot], slot)

    def committed(self, position: int, private) -> None:
        """A step is done. `private` has this rank's random states and buffers after it."""
        if self._files[0] is None and self._preparing is None:
            # The optimizers' states exist from the first step on.
            size = self._size(private)
            device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
            self._preparing = threading.Thread(target=self._prepare, args=(size, device), name="enn-mirror", daemon=True)
            self._preparing.start()
        if position % self._every == 0:
            self._copy(position, private)

    def _tensors(self, private) -> list[torch.Tensor]:
        return [*shards.local_tensors(self._state._parts), private.buffers.flat]

    def _size(self, private) -> int:
        return transfer.total_bytes(self._tensors(private))

    def _prepare(self, size: int, device: int | None) -> None:
        try:
            if device is not None:
                # A thread begins with device 0.
                torch.cuda.set_device(device)
            for slot in (0, 1):
                path = mirror_memory.path_of(self._directory, self._rank, slot)
                self._files[slot] = MirrorFile(path, size, device is not None, mirror_ahead.take(path, size))
        except Exception as error:
            self._error = error

    def _copy(self, position: int, private) -> None:
        tensors = self._tensors(private)
        self._wait_for_files(transfer.total_bytes(tensors))
        slot = 1 - self._slot
        self._files[slot].begin()
        targets = self._targets_in(slot, tensors)
        record = records.record_of(self._state, self._rank, position, private.streams)
        if not torch.cuda.is_initialized():
            torch_private.copy_tensors(targets, tensors)
            self._end(slot, record)
        else:
            self._pending = (self._copy_beside(targets, tensors), slot, record)
        self._slot = slot

    def _targets_in(self, slot: int, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns the places of the tensors in a file, which are found once."""
        layout = [(tensor.dtype, tensor.shape) for tensor in tensors]
        known = self._targets[slot]
        if known is None or known[0] != layout:
            known = (layout, transfer.parts_of(self._files[slot].flat, tensors))
            self._targets[slot] = known
        return known[1]

    def _copy_beside(self, targets: list[torch.Tensor], tensors: list[torch.Tensor]) -> torch.cuda.Event:
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            torch_private.copy_tensors(targets, tensors)
            return self._stream.record_event()

    def _wait_for_files(self, size: int) -> None:
        if self._preparing is not None:
            self._preparing.join()
        if self._error is not None:
            raise self._error
        if self._files[0].tensor_bytes != size:
            self._close_files()
            self._prepare(size, torch.cuda.current_device() if torch.cuda.is_initialized() else None)
            if self._error is not None:
                raise self._error

    def _close_files(self) -> None:
        self._targets = [None, None]
        for file in self._files:
            if file is not None:
                file.close()
        self._files = [None, None]

    def leave_round(self) -> None:
        """The groups of the round are no more, and the device has nothing left to do: a copy that it was making is whole."""
        if self._neighbour is not None:
            self._neighbour.leave()
        self._neighbour = None
        self.publish()

    def close(self) -> None:
        """Lets go of the files, which stay for a successor in the seat."""
        if self._preparing is not None:
            self._preparing.join()
        self._preparing = None
        self._pending = None
        self._close_files()

    def remove(self) -> None:
        """Removes the copies: the training is over."""
        rank = self._rank
        if self._neighbour is not None:
            self._neighbour.remove()
        self._neighbour = None
        self.close()
        for slot in (0, 1) if rank is not None else ():
            mirror_memory.path_of(self._directory, rank, slot).unlink(missing_ok=True)
