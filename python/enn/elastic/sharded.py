"""Modules and optimizers whose parameters are sharded: they live as long as the round, and get their state when they are made."""

import os
import pickle

import torch
import torch.distributed as dist

from . import agreement, mirror_memory, records, seat_memory, shards, torch_private, transfer
from .agreement import Claim, Decision, Held, Transfer
from .errors import ElasticError
from .messages import Seat
from .mirror import Mirror
from .mirror_memory import MirrorRecord
from .neighbour import Neighbour
from .records import Record
from .steps import VERDICT_SECONDS_MAX
from .verdict import Verdict


class Kept:
    """This rank's part of the state, on its device, from the round that has ended."""

    def __init__(self, signature: str, parts, snapshot):
        self.signature = signature
        self.tensors = shards.local_tensors(parts)
        self.layout = transfer.optimizer_layout(parts.optimizers)
        self.snapshot = snapshot


class Sharded:
    """The sharded parts of a state in an attached worker, over all rounds."""

    def __init__(self, state, worker, steps):
        self._state = state
        self._worker = worker
        self._steps = steps
        self._names = list(state._parts.all)
        self._entry = steps.snapshot
        self._seats = worker.seat_directory
        self._mirror = None
        if state._mirror_every and self._seats is not None:
            self._mirror = Mirror(state, self._seats, state._mirror_every)
        self._kept: Kept | None = None
        self._verdict: Verdict | None = None
        self._signature = ""
        self._reached = 0
        self._is_replicated = False
        self.is_joined = False

    # Rounds.

    def begin_again(self) -> None:
        """The training function is about to be entered again: it begins as if it were the first time."""
        self._steps.adopt(self._entry)

    def join(self, parts: dict, seat: Seat) -> None:
        """Gives the parts that the training function has made the state with which the round goes on."""
        if self.is_joined:
            raise ElasticError("state.sharded() is called a second time: give it all modules and optimizers in one call")
        steps = self._steps
        steps.is_active = False
        self._state._set_parts({**self._base(), **parts}, sharded=True)
        self._signature = shards.signature(self._state._parts)
        steps.adopt_parts(seat.rank)
        checkpoints = self._state._checkpoints
        decision = agreement.agree(self._worker.groups.store, seat.rank, seat.world, self._claim(), checkpoints.newest)
        self._restore(decision, seat)
        self._is_replicated = decision.is_replicated
        groups = self._worker.groups
        self._verdict = None
        if decision.is_replicated:
            self._verdict = Verdict(groups.store, self._worker.interruption, groups.device, steps.position)
        if self._mirror is not None:
            chosen = decision.neighbours
            neighbour = Neighbour(self._seats, seat.rank, chosen, self._worker.interruption) if chosen else None
            self._mirror.begin_round(seat.rank, self._signature, steps.position, neighbour)
        # In this order: whatever interrupts here, what this rank has is not forgotten.
        self.is_joined = True
        self._kept = None
        control = self._worker.control
        control.position = steps.position
        control.step = steps.position
        if steps.is_ready_late:
            control.ready(seat.round, steps.position)
        agreement.say(decision, self._state.step, seat.rank)
        steps.is_active = True

    def _base(self) -> dict:
        return {name: self._state._parts.all[name] for name in self._names}

    def left(self, is_whole: bool) -> tuple[int, bool]:
        """The round was left; returns up to which step this rank can bring its part of the state, and whether it can.

        `is_whole` says that what is on the device is that of a whole step.
        """
        self._reached = max(self._reached, self._steps.position)
        if self.is_joined:
            self._kept = Kept(self._signature, self._state._parts, self._steps.snapshot) if is_whole else None
        self.is_joined = False
        self._verdict = None
        if self._mirror is not None:
            self._mirror.leave_round()
        self._state._set_parts(self._base())
        if self._kept is not None and self._is_replicated:
            return self._kept.snapshot.position, True
        newest = self._mirror.newest() if self._mirror is not None else None
        return (newest.position, True) if newest is not None else (self._reached, False)

    def close(self) -> None:
        """The training is over."""
        if self._mirror is not None:
            self._mirror.remove()

    # Steps.

    def before_step(self, position: int) -> None:
        """An optimizer is about to do the step that leads to `position`; the device has not come there yet."""
        if self._mirror is not None:
            self._mirror.before_step(position)

    def publish(self) -> None:
        """The device has come to the optimizer's step."""
        if self._mirror is not None:
            self._mirror.publish()

    def counts(self, position: int) -> bool:
        """Returns whether a step of which this rank has all gradients is applied by all ranks."""
        return self._verdict is None or self._verdict.counts(position, VERDICT_SECONDS_MAX)

    def committed(self, position: int, private) -> None:
        """A step is done."""
        if self.is_joined and self._mirror is not None:
            self._mirror.committed(position, private)

    # The state with which a round goes on.

    def _claim(self) -> Claim:
        held = [Held(one.signature, one.position, is_mirror=True) for one in self._records()]
        if self._kept is not None and self._kept.signature == self._signature:
            held.append(Held(self._signature, self._kept.snapshot.position, is_mirror=False))
        reached = self._reached
        if self._seats is not None:
            reached = max(reached, seat_memory.newest(self._seats))
        return Claim(self._signature, held, self._entry.position, reached, f"{os.uname().nodename}:{self._seats}")

    def _records(self) -> list[MirrorRecord]:
        return mirror_memory.records(self._seats) if self._mirror is not None else []

    def _restore(self, decision: Decision, seat: Seat) -> None:
        steps = self._steps
        if self._kept is not None and self._kept.snapshot.position != decision.position:
            self._kept = None
        if decision.kind == agreement.ANEW:
            steps.take_snapshot(decision.position, is_entry=True)
        elif decision.kind == agreement.CHECKPOINT:
            record, buffers = self._state._checkpoints.load(self._state, decision.checkpoint, seat.rank)
            records.put_back(steps, record, seat.rank, buffers)
        else:
            self._restore_from_memory(decision, seat)

    def _restore_from_memory(self, decision: Decision, seat: Seat) -> None:
        if not any(transfer.target == seat.rank for transfer in decision.transfers):
            self._restore_own(decision.position, seat.rank)
        for transfer_ in decision.transfers:
            if transfer_.source == seat.rank:
                self._send(transfer_, decision.position, seat.rank)
            elif transfer_.target == seat.rank:
                self._receive(transfer_.source, seat.rank)

    def _restore_own(self, position: int, rank: int) -> None:
        steps = self._steps
        parts = self._state._parts
        kept = self._kept
        if kept is not None and kept.signature == self._signature:
            transfer.fit_optimizers(parts.optimizers, kept.layout)
            torch_private.copy_tensors(shards.local_tensors(parts), kept.tensors)
            steps.adopt(kept.snapshot)
            return
        found = self._record(self._signature, position, rank)
        flat, record = self._read(found)
        buffers = shards.copy_in(parts, steps._buffers, record, flat)
        records.put_back(steps, record, rank, buffers)

    def _record(self, signature: str, position: int, rank: int) -> MirrorRecord:
        """Returns a mirror of a part on this node, rather that of this rank."""
        fitting = [one for one in self._records() if (one.signature, one.position) == (signature, position)]
        if not fitting:
            raise ElasticError(f"the mirror of step {position} has vanished from {self._seats}")
        return min(fitting, key=lambda one: one.rank != rank)

    def _read(self, found: MirrorRecord) -> tuple[torch.Tensor, Record]:
        flat = self._mirror.flat_of(found) if self._mirror is not None else None
        mapped, rest = mirror_memory.read(found, flat is None)
        return mapped if flat is None else flat, records.unpack(rest)

    def _send(self, order: Transfer, position: int, rank: int) -> None:
        device = self._worker.groups.device
        if order.signature == self._signature and self._steps.position == position:
            tensors = [*shards.local_tensors(self._state._parts), self._steps.snapshot.private.buffers.flat]
            record = records.record_of(self._state, rank, position, None)
        else:
            flat, record = self._read(self._record(order.signature, position, order.target))
            tensors = list(flat.split(transfer.PIECE_BYTES))
        pieces = transfer.pieces(tensors)
        data = pickle.dumps((records.pack(record), [transfer.total_bytes(piece) for piece in pieces]))
        content = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
        _pass(dist.isend, torch.tensor([content.numel()], device=device), order.target)
        _pass(dist.isend, content, order.target)
        for piece in pieces:
            packed = torch.empty(transfer.total_bytes(piece), dtype=torch.uint8, device=device)
            torch_private.copy_tensors(transfer.parts_of(packed, piece), piece)
            if packed.numel():
                _pass(dist.isend, packed, order.target)

    def _receive(self, source: int, rank: int) -> None:
        device = self._worker.groups.device
        length = torch.zeros(1, dtype=torch.int64, device=device)
        _pass(dist.irecv, length, source)
        content = torch.empty(int(length.item()), dtype=torch.uint8, device=device)
        _pass(dist.irecv, content, source)
        packed, sizes = pickle.loads(content.cpu().numpy().tobytes())
        flat = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
        for piece in flat.split(sizes):
            if piece.numel():
                _pass(dist.irecv, piece, source)
        record = records.unpack(packed)
        buffers = shards.copy_in(self._state._parts, self._steps._buffers, record, flat)
        records.put_back(self._steps, record, rank, buffers)


def _pass(operation, tensor: torch.Tensor, peer: int) -> None:
    """Sends or receives over the default group, whose communicator exists already."""
    for work in dist.batch_isend_irecv([dist.P2POp(operation, tensor, peer)]):
        work.wait()


def attach(state, parts: dict) -> None:
    """See `State.sharded`."""
    from .worker import ElasticWorker, current

    base = state._parts
    if not isinstance(current(), ElasticWorker):
        state._set_parts({**base.all, **parts}, sharded=True)
        state._checkpoints.resume_plainly(state)
        return
    steps = state._steps
    if steps is None or not steps.is_active:
        raise ElasticError("state.sharded() belongs into the training function, after fully_shard()")
    if steps.sharded is None:
        if base.modules or base.optimizers:
            names = ", ".join(f"state.{name}" for name in [*base.modules, *base.optimizers])
            raise ElasticError(f"{names}: where modules are sharded, give all modules and optimizers to state.sharded(), and none to State()")
        steps.sharded = Sharded(state, current(), steps)
    steps.sharded.join(parts, current().seat)
