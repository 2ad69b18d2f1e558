"""What is private to a seat and survives its process: memory files in a directory of the node agent.

A seat has files for each of the last steps (`slots` of them: two, and two more where Python runs ahead of the device): one record that is
made before this rank can have contributed all of its gradients (`CONTRIBUTED`) and one that is made when the step is done (`DONE`). So the
record of a step stays readable until the other ranks cannot need it any more, also if the process is killed while it writes.
A file is a header of 64 bytes (magic, bytes of buffers, bytes of the streams and of the values, step or -1 while it is written, step whose
buffers are there), the buffers, the streams, the values.
"""

import mmap
import os
import pickle
import struct
from pathlib import Path

import torch

from . import torch_private

CONTRIBUTED = 0
DONE = 1
_SIZES = struct.Struct("<8sqqq")
_STEP = struct.Struct("<q")
_STEP_OFFSET = _SIZES.size
_BUFFERS_OFFSET = _STEP_OFFSET + _STEP.size
_HEADER_BYTES = 64
_MAGIC = b"ENNseat1"
_BEING_WRITTEN = -1
# Room for random states and small values; a file that becomes too small is made again with twice the room.
_ROOM_BYTES = 64 << 10


class SeatMemory:
    """The records of one rank. `buffer_bytes` is the size of the module buffers in a record; `directory` must exist."""

    def __init__(self, directory: Path, rank: int, slots: int, buffer_bytes: int, on_device: bool):
        self._slots = {}
        self._count = slots
        for number in range(slots):
            for kind in (CONTRIBUTED, DONE):
                self._slots[number, kind] = _Slot(_path(directory, rank, number, kind), buffer_bytes, on_device)

    def buffers(self, step: int, kind: int) -> torch.Tensor:
        """Begins a record: the one that was there is no more. Returns the place of the buffers (uint8), to be filled before `write`."""
        return self._slots[step % self._count, kind].begin()

    def write(self, step: int, kind: int, streams: bytes, values: bytes, has_buffers: bool) -> None:
        """Ends a record that `buffers` began. Its buffers may still be on their way from the device."""
        self._slots[step % self._count, kind].end(step, streams, values, has_buffers)

    def complete(self, step: int, kind: int) -> None:
        """The buffers of a record are there."""
        self._slots[step % self._count, kind].complete(step)

    def close(self) -> None:
        for slot in self._slots.values():
            slot.close()


def _path(directory: Path, rank: int, slot: int, kind: int) -> Path:
    return directory / f"seat-{rank}-{slot}-{kind}"


class _Slot:
    def __init__(self, path: Path, buffer_bytes: int, on_device: bool):
        self._path = path
        self._buffer_bytes = buffer_bytes
        self._on_device = on_device
        self._map = None
        self._whole = None
        self._buffers = None
        self._streams = b""
        self._is_registered = False

    def begin(self) -> torch.Tensor:
        if self._map is None:
            self._open(_HEADER_BYTES + self._buffer_bytes + _ROOM_BYTES)
        self._set_step(_BEING_WRITTEN)
        return self._buffers

    def end(self, step: int, streams: bytes, values: bytes, has_buffers: bool) -> None:
        begin = _HEADER_BYTES + self._buffer_bytes
        middle = begin + len(streams)
        end = middle + len(values)
        if end > len(self._map):
            buffers = self._buffers.clone()
            self.close()
            self._open(begin + 2 * (end - begin))
            self._set_step(_BEING_WRITTEN)
            self._buffers.copy_(buffers)
        # Most steps draw nothing on the host.
        if streams is not self._streams:
            self._map[begin:middle] = streams
            self._streams = streams
        self._map[middle:end] = values
        _SIZES.pack_into(self._map, 0, _MAGIC, self._buffer_bytes, len(streams), len(values))
        _STEP.pack_into(self._map, _BUFFERS_OFFSET, step if has_buffers else _BEING_WRITTEN)
        # The step makes the record valid: it is written last.
        self._set_step(step)

    def _open(self, size: int) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # A full file system is an error here, and not a signal at the first write.
            os.posix_fallocate(descriptor, 0, size)
            self._map = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        self._whole = torch.frombuffer(self._map, dtype=torch.uint8)
        self._buffers = self._whole[_HEADER_BYTES : _HEADER_BYTES + self._buffer_bytes]
        if self._on_device and self._buffer_bytes:
            self._is_registered = torch_private.register_host_memory(self._whole)

    def complete(self, step: int) -> None:
        _STEP.pack_into(self._map, _BUFFERS_OFFSET, step)

    def _set_step(self, step: int) -> None:
        _STEP.pack_into(self._map, _STEP_OFFSET, step)

    def close(self) -> None:
        if self._is_registered:
            torch_private.unregister_host_memory(self._whole)
        self._is_registered = False
        # The map itself is closed when the last tensor over it is gone.
        self._whole = None
        self._buffers = None
        self._streams = b""
        self._map = None


def read(directory: Path, rank: int, slots: int, step: int, kind: int) -> tuple[bytes | None, dict, bytes | None] | None:
    """Returns buffers (`None` if they were not there yet), streams and values of the record of a rank after `step` steps.

    `None`: there is no such record.
    """
    try:
        data = _path(directory, rank, step % slots, kind).read_bytes()
    except FileNotFoundError:
        return None
    if len(data) < _HEADER_BYTES:
        return None
    magic, buffer_bytes, stream_bytes, value_bytes = _SIZES.unpack_from(data)
    (found,) = _STEP.unpack_from(data, _STEP_OFFSET)
    begin = _HEADER_BYTES + buffer_bytes
    middle = begin + stream_bytes
    if magic != _MAGIC or found != step or middle + value_bytes > len(data):
        return None
    has_buffers = _STEP.unpack_from(data, _BUFFERS_OFFSET)[0] == step
    # The file was written by a process of the same user and run.
    streams = pickle.loads(data[begin:middle])
    cuda, values = pickle.loads(data[middle : middle + value_bytes])
    streams |= {"cuda": cuda} if cuda is not None else {}
    return data[_HEADER_BYTES:begin] if has_buffers else None, streams, values


def newest(directory: Path) -> int:
    """Returns the newest step of which a rank of this node has said that it is done, or 0."""
    steps = [0]
    for path in directory.glob(f"seat-*-{DONE}"):
        with open(path, "rb") as file:
            data = file.read(_HEADER_BYTES)
        if len(data) == _HEADER_BYTES and data.startswith(_MAGIC):
            steps.append(_STEP.unpack_from(data, _STEP_OFFSET)[0])
    return max(steps)


class Packer:
    """Packs the streams on the host once as long as they stay the same objects."""

    def __init__(self):
        self._last: list[bytes] = []
        self._packed = b""

    def pack(self, streams: dict[str, bytes], values: bytes | None) -> tuple[bytes, bytes]:
        """Returns streams and values of a record. The stream of the device is among the values."""
        on_host = {name: state for name, state in streams.items() if name != "cuda"}
        states = list(on_host.values())
        if len(states) != len(self._last) or any(one is not other for one, other in zip(states, self._last)):
            self._last = states
            self._packed = pickle.dumps(on_host, protocol=pickle.HIGHEST_PROTOCOL)
        return self._packed, pickle.dumps((streams.get("cuda"), values), protocol=pickle.HIGHEST_PROTOCOL)
