"""Everything of one rank after a step but the tensors of its modules and optimizers: what mirrors and checkpoints keep beside these."""

import pickle

from . import random_streams, transfer
from .buffers import BufferCopy
from .small_parts import to_host
from .steps import Private, Snapshot, state_sizes


class Record:
    """The attributes are those of `record_of`. All can be pickled."""

    def __init__(self, **fields):
        self.__dict__.update(fields)


def record_of(state, rank: int, position: int, streams: dict | None) -> Record:
    """Returns the record of the state as it is now, after `position` commits. `streams` are the random states of the rank."""
    parts = state._parts
    return Record(
        rank=rank,
        position=position,
        step=state.step,
        parts=to_host(parts.small.capture()),
        values=parts.pickled_values(),
        streams=streams,
        layout=transfer.optimizer_layout(parts.optimizers),
    )


def pack(record: Record) -> bytes:
    """Returns the record as bytes."""
    return pickle.dumps(record.__dict__, protocol=pickle.HIGHEST_PROTOCOL)


def unpack(data: bytes) -> Record:
    """Reverses `pack`. The data was written by a process of the same user."""
    return Record(**pickle.loads(data))


def put_back(steps, record: Record, rank: int, buffers: BufferCopy | None) -> None:
    """Completes a state whose tensors are those of the record already. A rank other than the record's has its random states from its seat."""
    if record.rank == rank and buffers is not None:
        snapshot = Snapshot(record.position, record.step, record.parts, record.values, is_entry=False, sizes=state_sizes(steps._parts))
        snapshot.private = Private(record.position, record.streams, buffers, is_done=True)
        steps.adopt(snapshot)
        return
    if buffers is not None:
        steps._buffers.restore(buffers)
    steps.take_over(pickle.dumps((record.position, record.step, record.parts, record.values, False)), rank)


def put_back_plainly(state, record: Record, is_own: bool) -> None:
    """The same for a process without recovery."""
    state._parts.small.restore(record.parts)
    state._parts.set_pickled_values(record.values)
    state._set_step(record.step)
    if is_own:
        random_streams.restore(record.streams)
