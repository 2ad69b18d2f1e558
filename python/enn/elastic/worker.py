"""Who this process is: a worker of a launcher that can seat it anew, one of `torchrun`, or the only one."""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from . import torch_private
from .control import Control
from .errors import ElasticError
from .groups import RoundGroups
from .interruption import Interruption
from .messages import Seat


# Longest time, with room, from the first rank to the last one to hear that a round is over.
NOTICE_SECONDS = 0.02


class Worker:
    """A worker without recovery: its place in the world is that of its environment."""

    def __init__(self):
        self.steps = None

    @property
    def rank(self) -> int:
        return int(os.environ.get("RANK", 0))

    @property
    def world_size(self) -> int:
        return int(os.environ.get("WORLD_SIZE", 1))

    @property
    def local_rank(self) -> int:
        return int(os.environ.get("LOCAL_RANK", 0))

    def settle(self) -> None:
        """A loop begins. Here nothing has to be put back."""

    def check_end_of_step(self) -> None:
        """A pass of a loop has ended. Here nothing depends on that."""

    def hold(self) -> None:
        """Nothing is raised here from outside."""

    def release(self) -> None:
        """Reverses `hold`."""


class ElasticWorker(Worker):
    """A worker that is attached to the broker of its node.

    Its seat comes with the first question for it, so that a spare waits there, or before the training function.
    """

    def __init__(self, socket_path: str, backend: str, timeout: timedelta | None):
        super().__init__()
        self.interruption = Interruption()
        self.groups = RoundGroups(backend, timeout, self.interruption)
        number = int(_required("ENN_WORKER_ID"))
        self.control = Control(socket_path, number, self.interruption, self._abort, self._has_to_stop)
        # A spare says that it is ready where it waits for a seat: then all that the script does before is done.
        self._is_spare = "RANK" not in os.environ
        if not self._is_spare:
            self.control.attach()
        self._seat: Seat | None = None
        self._promised: int | None = None
        self._waiting: Seat | None = None
        self._stop_position: int | None = None
        seats = os.environ.get("ENN_SEAT_DIR")
        self.seat_directory = Path(seats) if seats else None
        if self.seat_directory is not None:
            self.control.stalls.path = self.seat_directory / f"stack-{os.getpid()}"

    @property
    def seat(self) -> Seat:
        """The seat; waits for it if there was none yet."""
        if self._seat is None:
            self._waiting = self.take_seat()
        if self._seat is None:
            raise ElasticError("this worker has no seat, and the connection to the launcher has ended")
        return self._seat

    def take_seat(self) -> Seat:
        """Returns the seat of the next round. Ends the process if the launcher asks a spare, or a worker that it has parked, to end.

        Raises `ElasticError` if there comes none since the connection to the launcher was lost.
        """
        if self._is_spare:
            self._is_spare = False
            torch_private.import_ahead()
            self.control.attach()
        seat = self._waiting or self.control.next_seat()
        self._waiting = None
        if seat is None and (self.control.is_parked or (self.control.is_stopping and self._seat is None)):
            # What a parked worker has is older than what the others save.
            sys.exit(0)
        if seat is not None:
            if self._promised not in (None, seat.local_rank):
                raise ElasticError(f"local rank {self._promised} would become {seat.local_rank}: the device of a process cannot change")
            self._promised = seat.local_rank
            self._seat = seat
            _publish(seat)
        return seat

    @property
    def promised(self) -> int | None:
        """The local rank of the only seat that this worker can get, if it is a spare that has taken its device."""
        return self._promised if self._is_spare else None

    @property
    def rank(self) -> int:
        return self.seat.rank

    @property
    def world_size(self) -> int:
        return self.seat.world

    @property
    def local_rank(self) -> int:
        if self._is_spare and "LOCAL_RANK" in os.environ:
            # The launcher keeps this spare for one device.
            self._promised = int(os.environ["LOCAL_RANK"])
            return self._promised
        return self.seat.local_rank

    def settle(self) -> None:
        if self.steps is not None:
            self.steps.settle()

    def check_end_of_step(self) -> None:
        if self.steps is not None:
            self.steps.check_end_of_step()
            self.interruption.raise_if_over()

    def hold(self) -> None:
        self.interruption.hold()

    def release(self) -> None:
        self.interruption.release()

    def _abort(self) -> None:
        """Called by the control thread when the round is over."""
        if self.steps is not None:
            self.steps.discard_from_now()
        if self.groups.uses_nccl or (self.steps is not None and self.steps.ahead):
            # An aborted rank passes on what lies in its buffers, with which the collective of another rank may end as if nothing had
            # happened. By then that rank has to know that the round is over.
            time.sleep(NOTICE_SECONDS)
        if self.steps is not None:
            self.steps.let_go()
        self.groups.abort()

    # The end that the launcher asks for: all ranks have to end after the same step.

    def _has_to_stop(self) -> bool:
        """Called by the control thread while a stop is asked for. Returns whether this rank is in a step that no rank is to do."""
        if self.groups.store is None or not self.control.is_participating:
            return False
        if self._stop_position is None:
            store = self.groups.store
            if self._seat.rank == 0:
                # Rank 0 looks at the flag after each step, so it cannot be beyond the next one; nor can others, without rank 0, save for the
                # steps that they may have begun ahead of the device.
                store.compare_set("stop", "", str(self.control.position + 1 + self.steps.ahead))
            if store.check(["stop"]):
                self._stop_position = int(store.get("stop"))
        return self._stop_position is not None and self.control.step >= self._stop_position

    def stop_position(self) -> int:
        """Waits until it is known after which step all ranks end. Raises `Interrupted` if the round ends before."""
        return int(self.groups.store.get("stop"))


def _required(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise ElasticError(f"ENN_SCRIPT_SOCKET is set and {name} is not: the launcher sets both")
    return value


def _publish(seat: Seat) -> None:
    """Gives other libraries the seat where they look for it."""
    os.environ.update(
        RANK=str(seat.rank),
        WORLD_SIZE=str(seat.world),
        LOCAL_RANK=str(seat.local_rank),
        LOCAL_WORLD_SIZE=str(seat.local_world),
        MASTER_ADDR=seat.master_addr,
        MASTER_PORT=str(seat.master_port),
    )


_worker: Worker | None = None


def current() -> Worker:
    """Returns the worker that this process is. Raises `ElasticError` before `init`."""
    if _worker is None:
        raise ElasticError("call enn.elastic.init() first")
    return _worker


def current_or_plain() -> Worker:
    """Returns the worker that this process is; before `init`, one without recovery."""
    return _worker or Worker()


def init(backend: str | None = None, timeout: timedelta | None = None) -> None:
    """Takes the place of `torch.distributed.init_process_group`, once in a process.

    Under a launcher that can seat workers anew (it sets ENN_SCRIPT_SOCKET) this attaches to it; process groups exist only inside the
    training function. Under torchrun, and for a script that is started by itself (a world of one), it makes the default process group.

    `backend` is one that `init_process_group` takes; NCCL where there is a CUDA device, else Gloo, if it is not given. `timeout` is the
    limit of a collective.

    Raises `ElasticError` at a second call, or where process groups exist already.
    """
    global _worker
    if _worker is not None:
        raise ElasticError("enn.elastic.init() was called before")
    backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    socket_path = os.environ.get("ENN_SCRIPT_SOCKET")
    obstacle = torch_private.unsupported() if socket_path else None
    if obstacle is not None:
        print(f"enn: failures restart all workers: {obstacle}", file=sys.stderr, flush=True)
    if dist.is_initialized():
        raise ElasticError("a process group exists already: call enn.elastic.init() instead of init_process_group()")
    if socket_path and obstacle is None:
        # NCCL's watchdog would end the process when a peer dies.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        # Four times this long it sleeps after an error, which the end of a group waits for; and there is nothing to write down then.
        os.environ.setdefault("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "50")
        os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "0")
        _worker = ElasticWorker(socket_path, backend, timeout)
        return
    _worker = Worker()
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=timeout)
    else:
        dist.init_process_group(backend, timeout=timeout, store=dist.HashStore(), rank=0, world_size=1)
