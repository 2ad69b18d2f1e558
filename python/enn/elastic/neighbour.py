"""Second copies of mirrors, on another node: each rank sends its own to one rank, and keeps those of another one."""

import queue
import sys
import threading
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from . import mirror_memory, transfer
from .interruption import Interruption
from .mirror_memory import MirrorFile

_DATA = 1
_ACKNOWLEDGED = 2
_END = -1
_SIGNATURE_BYTES = 32
# Between two mirrors nothing is sent.
_PATIENCE = timedelta(days=30)


def targets(nodes: list[str]) -> list[int]:
    """Returns for each rank, given the node of each, the rank that keeps its second copy: of another node, and each rank keeps one.

    The list is empty if there is one node, or if one has more than half of all ranks.
    """
    order = sorted(range(len(nodes)), key=lambda rank: (nodes[rank], rank))
    largest = max(nodes.count(node) for node in nodes)
    if 2 * largest > len(nodes):
        return []
    chosen = [0] * len(nodes)
    for index, rank in enumerate(order):
        chosen[rank] = order[(index + largest) % len(nodes)]
    return chosen


class Neighbour:
    """The exchange of one round, by two threads and a group of its own. All ranks make one at the same place."""

    def __init__(self, directory: Path, rank: int, chosen: list[int], interruption: Interruption):
        self._directory = directory
        self._target = chosen[rank]
        self._source = chosen.index(rank)
        self._interruption = interruption
        self._group = dist.new_group(backend="gloo", timeout=_PATIENCE)
        self._orders: queue.SimpleQueue = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._unfinished = 0
        self._has_failed = False
        self._kept: dict[int, MirrorFile] = {}
        self._threads = [threading.Thread(target=self._guarded, args=(work,), daemon=True) for work in (self._send_all, self._keep_all)]
        for thread in self._threads:
            thread.start()

    def send(self, file: MirrorFile, slot: int) -> None:
        """Sends a copy that is whole, in the background."""
        with self._changed:
            self._unfinished += 1
        self._orders.put((file, slot))

    def wait(self) -> None:
        """Waits until the other rank has all that was sent. Raises `Interrupted` if the round ends before."""
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._unfinished == 0 or self._has_failed, 0.02):
                    return
            self._interruption.raise_if_over()

    def _guarded(self, work) -> None:
        try:
            work()
        except Exception as error:
            with self._changed:
                self._has_failed = True
                self._changed.notify_all()
            if not self._interruption.is_over():
                print(f"enn: mirrors are not copied to another node any more: {error}", file=sys.stderr, flush=True)

    def _send_all(self) -> None:
        while True:
            order = self._orders.get()
            if order is None:
                self._pass(dist.send, torch.tensor([_END, 0, 0, 0]), self._target)
                return
            file, slot = order
            record = mirror_memory.record(file.path)
            _, rest = mirror_memory.read(record, with_tensors=False)
            header = torch.tensor([slot, record.position, record.tensor_bytes, len(rest)])
            self._pass(dist.send, header, self._target)
            content = torch.frombuffer(bytearray(record.signature.encode() + rest), dtype=torch.uint8)
            self._pass(dist.send, content, self._target)
            for piece in file.flat.split(transfer.PIECE_BYTES):
                self._pass(dist.send, piece, self._target)
            self._pass(dist.recv, torch.zeros(1), self._target, _ACKNOWLEDGED)
            with self._changed:
                self._unfinished -= 1
                self._changed.notify_all()

    def _keep_all(self) -> None:
        while True:
            header = torch.zeros(4, dtype=torch.int64)
            self._pass(dist.recv, header, self._source)
            slot, position, tensor_bytes, rest_bytes = header.tolist()
            if slot == _END:
                return
            content = torch.empty(_SIGNATURE_BYTES + rest_bytes, dtype=torch.uint8)
            self._pass(dist.recv, content, self._source)
            data = content.numpy().tobytes()
            file = self._file(slot, tensor_bytes)
            for piece in file.begin().split(transfer.PIECE_BYTES):
                self._pass(dist.recv, piece, self._source)
            file.end(self._source, data[:_SIGNATURE_BYTES].decode(), position, data[_SIGNATURE_BYTES:])
            self._pass(dist.send, torch.zeros(1), self._source, _ACKNOWLEDGED)

    def _pass(self, operation, tensor: torch.Tensor, peer: int, tag: int = _DATA) -> None:
        if tensor.numel():
            operation(tensor, peer, group=self._group, tag=tag)

    def _file(self, slot: int, tensor_bytes: int) -> MirrorFile:
        file = self._kept.get(slot)
        if file is None or file.tensor_bytes != tensor_bytes:
            if file is not None:
                file.close()
            path = mirror_memory.path_of(self._directory, self._source, slot)
            self._kept[slot] = MirrorFile(path, tensor_bytes, on_device=False)
        return self._kept[slot]

    def leave(self) -> None:
        """The groups of the round are no more. The copies stay."""
        self._orders.put(None)
        for thread in self._threads:
            thread.join(5)
        for file in self._kept.values():
            file.close()
        self._kept = {}

    def remove(self) -> None:
        """The training is over, in all ranks: removes the copies."""
        self.leave()
        for slot in (0, 1):
            mirror_memory.path_of(self._directory, self._source, slot).unlink(missing_ok=True)
