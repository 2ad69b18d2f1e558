"""Checkpoints of the whole state by torch.distributed.checkpoint (DCP), written beside the training, and the newest one read at a start.

A checkpoint is a folder `step-NUMBER-ROUND` that DCP reads: the `state_dict` of each module and optimizer under its name in the state. Beside
them is a file `enn-RANK` of each rank (schedulers, samplers, values, random states, buffers). DCP writes `.metadata` when all ranks have
written all: a folder without it does not count.
"""

import os
import re
import shutil
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist

from . import random_streams, records
from .buffers import BufferCopy, Buffers
from .errors import ElasticError
from .records import Record

_NAME = re.compile(r"step-(\d+)-(\d+)")
_METADATA = ".metadata"
_KEEP = 2


class Checkpoints:
    """Where checkpoints are, and how often one is written; without `directory`, none are."""

    def __init__(self, directory: Path | None = None, every: int = 0):
        self.directory = directory
        self._every = every
        self._group = None
        self._rank = 0
        self._round = 0
        self._writing: threading.Thread | None = None
        self._is_active = False

    def newest(self) -> tuple[int, str] | None:
        """Returns position and folder of the newest whole checkpoint, or `None`."""
        found = self._whole()
        if not found:
            return None
        return _record(found[-1], 0).position, found[-1].name

    def _folders(self) -> list[Path]:
        """Returns the folders of checkpoints, whole or not, the newest last."""
        if self.directory is None or not self.directory.is_dir():
            return []
        numbers = {path: tuple(map(int, match.groups())) for path in self.directory.iterdir() if (match := _NAME.fullmatch(path.name))}
        return sorted(numbers, key=numbers.get)

    def _whole(self) -> list[Path]:
        return [path for path in self._folders() if (path / _METADATA).exists() and _is_own(path)]

    # Writing.

    def begin_round(self, rank: int, round_number: int) -> None:
        """All ranks of a round call it at the same place."""
        if self.directory is None:
            return
        self._rank = rank
        self._round = round_number
        # The thread that writes talks to those of other ranks, beside the collectives of training.
        self._group = dist.new_group(backend="gloo")
        self._is_active = True

    def is_due(self, step: int) -> bool:
        """Returns whether a checkpoint is to be written after so many steps."""
        return self._is_active and step > 0 and step % self._every == 0

    def save(self, state, position: int, streams: dict, buffers: BufferCopy) -> None:
        """Copies the state to the host, and writes it in a thread. `streams` and `buffers` are those of this rank."""
        self.finish()
        record = records.record_of(state, self._rank, position, streams)
        record.buffers = buffers.flat.cpu().numpy().tobytes()
        staged = _copied(_state_dicts(state._parts))
        path = self.directory / f"step-{state.step}-{self._round}"
        arguments = (path, staged, records.pack(record), self._group)
        self._writing = threading.Thread(target=self._write, args=arguments, name="enn-checkpoint", daemon=True)
        self._writing.start()

    def _write(self, path: Path, staged: dict, record: bytes, group) -> None:
        import torch.distributed.checkpoint as dcp

        try:
            path.mkdir(parents=True, exist_ok=True)
            with open(path / f"enn-{self._rank}", "wb") as file:
                file.write(record)
                file.flush()
                os.fsync(file.fileno())
            # It writes the metadata when all ranks have written the rest.
            dcp.save(staged, checkpoint_id=str(path), process_group=group)
            if self._rank == 0:
                self._remove_old()
        except Exception as error:
            print(f"enn: checkpoint {path} was not finished: {str(error).splitlines()[0][:200]}", file=sys.stderr, flush=True)

    def _remove_old(self) -> None:
        """Keeps the newest whole ones; what is older goes, whole or not."""
        oldest = self._whole()[-_KEEP:][0]
        for path in self._folders():
            if path == oldest:
                return
            shutil.rmtree(path, ignore_errors=True)

    def finish(self) -> None:
        """Waits until the checkpoint that is being written is done."""
        if self._writing is not None:
            self._writing.join()
        self._writing = None

    def leave_round(self) -> None:
        """The groups of the round are no more; what was being written may not become whole."""
        self._is_active = False
        self._group = None
        self._writing = None

    # Reading.

    def load(self, state, folder: str, rank: int) -> tuple[Record, BufferCopy | None]:
        """Fills modules and optimizers, in all ranks; returns the rest, and the buffers if this rank has written them.

        Raises `ElasticError` if there is no such checkpoint of this user.
        """
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import set_model_state_dict, set_optimizer_state_dict

        path = next((one for one in self._whole() if one.name == folder), None)
        if path is None:
            raise ElasticError(f"rank 0 starts from the checkpoint {folder}, and {self.directory} has no whole one of that name here")
        parts = state._parts
        loaded = _state_dicts(parts)
        dcp.load(loaded, checkpoint_id=str(path))
        for name, module in parts.modules.items():
            set_model_state_dict(module, loaded[name])
        for name, optimizer in parts.optimizers.items():
            set_optimizer_state_dict(_owner(parts, name), optimizer, loaded[name])
        parts.drop_gradients()
        record = _record(path, rank if (path / f"enn-{rank}").exists() else 0)
        buffers = Buffers(parts.modules.values(), parts.trained()).from_bytes(record.buffers)
        return record, buffers if record.rank == rank else None

    # Without recovery.

    def resume_plainly(self, state) -> None:
        """A process of torchrun, or one that runs alone, goes on from the newest checkpoint, and writes others."""
        if self.directory is None or self._is_active:
            return
        rank = dist.get_rank()
        found = [self.newest() if rank == 0 else None]
        dist.broadcast_object_list(found, 0)
        if found[0] is not None:
            folder = found[0][1]
            record, buffers = self.load(state, folder, rank)
            if buffers is not None:
                Buffers(state._parts.modules.values(), state._parts.trained()).restore(buffers)
            records.put_back_plainly(state, record, record.rank == rank)
            if rank == 0:
                print(f"enn: training goes on after step {state.step}, from the checkpoint {folder}", file=sys.stderr, flush=True)
        self.begin_round(rank, 0)

    def committed_plainly(self, state) -> None:
        """A step is done in such a process."""
        if self.is_due(state.step):
            buffers = Buffers(state._parts.modules.values(), state._parts.trained())
            copy = buffers.new_copy()
            buffers.capture(copy)
            self.save(state, state.step, random_streams.capture(), copy)


def _is_own(path: Path) -> bool:
    """Returns whether a folder and what is in it belong to this user. DCP and we unpickle what we read."""
    return all(one.stat().st_uid == os.geteuid() for one in (path, *path.iterdir()))


def _record(path: Path, rank: int) -> Record:
    return records.unpack((path / f"enn-{rank}").read_bytes())


def _state_dicts(parts) -> dict:
    """Returns the state of modules and optimizers with the names of parameters, as DCP takes it."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

    found = {name: get_model_state_dict(module) for name, module in parts.modules.items()}
    for name, optimizer in parts.optimizers.items():
        found[name] = get_optimizer_state_dict(_owner(parts, name), optimizer)
    return found


def _owner(parts, name: str) -> torch.nn.Module:
    """Returns the module whose parameters the optimizer changes."""
    optimized = {id(one) for group in parts.optimizers[name].param_groups for one in group["params"]}
    for module in parts.modules.values():
        if optimized <= {id(one) for one in module.parameters()}:
            return module
    raise ElasticError(f"state.{name} changes parameters of more than one module, which state.checkpoint() cannot write")


def _copied(value):
    """Returns a copy on the CPU, which later steps do not change."""
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(one) for one in value)
    return value.detach().to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
