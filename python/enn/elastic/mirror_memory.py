"""A copy of one rank's part of a sharded state, in a memory file, which survives the process.

A file is a header of 4,096 bytes (magic, bytes of tensors, bytes of the rest, writer's rank, signature of the part, position or -1 while it
is written), the tensors, the rest. The position makes the copy valid: it is written last.
"""

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import torch

from . import torch_private
from .errors import ElasticError

_FIELDS = struct.Struct("<8sqqq32s")
_POSITION = struct.Struct("<q")
_HEADER_BYTES = 4096
_MAGIC = b"ENNmirr1"
_BEING_WRITTEN = -1
_NAME = "mirror-{rank}-{slot}"


@dataclass(frozen=True)
class MirrorRecord:
    """A whole copy. `rank` has written it after `position` commits; `signature` says which part of the state it is."""

    path: Path
    rank: int
    signature: str
    position: int
    tensor_bytes: int
    rest_bytes: int


class MirrorFile:
    """One of the two files of a rank. `tensor_bytes` is the size of the tensors; the memory is allocated here. `ahead` has them mapped.

    Raises `ElasticError` if the file system has no room for it.
    """

    def __init__(self, path: Path, tensor_bytes: int, on_device: bool, ahead=None):
        self.path = path
        self.tensor_bytes = tensor_bytes
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # A full file system is an error here, and not a signal at the first write.
            os.posix_fallocate(self._descriptor, 0, _HEADER_BYTES + tensor_bytes)
        except OSError as error:
            os.close(self._descriptor)
            path.unlink()
            raise ElasticError(
                f"{path} needs {tensor_bytes >> 20} MiB for the mirror of this rank, and cannot get them: {error.strerror}. Give this file "
                "system more room (a container has --shm-size), or call state.checkpoint() instead of state.mirror()"
            ) from None
        self.flat = _mapped(self._descriptor, tensor_bytes, at_once=False) if ahead is None else ahead.flat
        self._is_registered = ahead is not None and ahead.is_registered
        if on_device and not self._is_registered:
            self._is_registered = torch_private.register_host_memory(self.flat)

    def begin(self) -> torch.Tensor:
        """Begins a copy: the one that was there is no more. Returns the place of the tensors (uint8), to be filled before `end`."""
        self._set_position(_BEING_WRITTEN)
        return self.flat

    def end(self, rank: int, signature: str, position: int, rest: bytes) -> None:
        """Ends a copy that `begin` began."""
        os.pwrite(self._descriptor, _FIELDS.pack(_MAGIC, self.tensor_bytes, len(rest), rank, signature.encode()), 0)
        begin = _HEADER_BYTES + self.tensor_bytes
        os.posix_fallocate(self._descriptor, begin, max(1, len(rest)))
        os.pwrite(self._descriptor, rest, begin)
        self._set_position(position)

    def _set_position(self, position: int) -> None:
        os.pwrite(self._descriptor, _POSITION.pack(position), _FIELDS.size)

    def close(self) -> None:
        if self._is_registered:
            torch_private.unregister_host_memory(self.flat)
        self._is_registered = False
        # The map itself is closed when the last tensor over it is gone.
        self.flat = None
        os.close(self._descriptor)


def _mapped(descriptor: int, size: int, at_once: bool) -> torch.Tensor:
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
    flags = mmap.MAP_SHARED | (getattr(mmap, "MAP_POPULATE", 0) if at_once else 0)
    memory = mmap.mmap(descriptor, size, flags=flags, offset=_HEADER_BYTES)
    return torch.frombuffer(memory, dtype=torch.uint8)


def path_of(directory: Path, rank: int, slot: int) -> Path:
    """Returns the path of one of the two files of a rank."""
    return directory / _NAME.format(rank=rank, slot=slot)


def records(directory: Path) -> list[MirrorRecord]:
    """Returns the whole copies in a directory."""
    found = [record(path) for path in sorted(directory.glob(_NAME.format(rank="*", slot="*")))]
    return [one for one in found if one is not None]


def record(path: Path) -> MirrorRecord | None:
    """Returns what is in a file, if it is whole."""
    try:
        with open(path, "rb") as file:
            header = file.read(_HEADER_BYTES)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return None
    if len(header) < _HEADER_BYTES:
        return None
    magic, tensor_bytes, rest_bytes, rank, signature = _FIELDS.unpack_from(header)
    (position,) = _POSITION.unpack_from(header, _FIELDS.size)
    if magic != _MAGIC or position == _BEING_WRITTEN or _HEADER_BYTES + tensor_bytes + rest_bytes > size:
        return None
    return MirrorRecord(path, rank, signature.decode(), position, tensor_bytes, rest_bytes)


def read(found: MirrorRecord, with_tensors: bool = True) -> tuple[torch.Tensor | None, bytes]:
    """Returns the tensors (uint8, mapped), unless they are not wanted, and the rest of a copy."""
    with open(found.path, "r+b") as file:
        flat = _mapped(file.fileno(), found.tensor_bytes, at_once=True) if with_tensors else None
        rest = os.pread(file.fileno(), found.rest_bytes, _HEADER_BYTES + found.tensor_bytes)
    return flat, rest


def invalidate(found: MirrorRecord) -> None:
    """Makes a copy count no more."""
    with open(found.path, "r+b") as file:
        os.pwrite(file.fileno(), _POSITION.pack(_BEING_WRITTEN), _FIELDS.size)
