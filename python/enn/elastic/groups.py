"""The process groups of one round: made over keys of the round, aborted from outside, forgotten."""

import threading
from datetime import timedelta

import torch
import torch.distributed as dist

from . import torch_private
from .errors import ElasticError
from .messages import Seat
from .round_store import RoundStore

# All ranks are there when groups are made, so connecting takes milliseconds. It cannot be interrupted.
CONNECT_SECONDS_MAX = 5
STORE_SECONDS_MAX = 10
DEFAULT_TIMEOUT = timedelta(minutes=30)
# At the end of the process, for aborted groups to end.
LEAVE_SECONDS_MAX = 5


class RoundGroups:
    """The default process group of a round, and the groups that user code makes in it.

    `backend` is one that `torch.distributed.init_process_group` takes, `timeout` the limit of a collective.
    """

    def __init__(self, backend: str, timeout: timedelta | None, interruption):
        self.backend = backend
        self._timeout = timeout or DEFAULT_TIMEOUT
        self._interruption = interruption
        self._client = None
        self._address = None
        self._connections = torch_private.ConnectionsOfGroups()
        # torch holds the C++ half of a store only: the Python halves are kept as long as a group may ask them.
        self._halves: list[RoundStore] = []
        self._are_forgotten = threading.Event()
        self._leaving: threading.Thread | None = None
        self.store: dist.Store | None = None

    @property
    def device(self) -> torch.device:
        """Device of tensors that the backend sends."""
        return torch.device("cuda", torch.cuda.current_device()) if "nccl" in self.backend else torch.device("cpu")

    def watched(self):
        """Context in which groups may be made."""
        return self._connections.watched()

    def form(self, seat: Seat) -> None:
        """Waits for all ranks of the round and makes the default group with them.

        Raises `Interrupted` if the round ends before, and `ElasticError` if there is no store to meet at.
        """
        self._are_forgotten.clear()
        self._connect(seat)
        # torch puts some keys below all prefixes that it knows of: those of an ended round would be found in the next one.
        self.store = RoundStore(dist.PrefixStore(seat.store_prefix, self._client), self._interruption)
        self._halves.append(self.store)
        self.meet("begin", seat.world)
        device = self.device
        dist.init_process_group(
            self.backend,
            store=self.store,
            rank=seat.rank,
            world_size=seat.world,
            timeout=timedelta(seconds=CONNECT_SECONDS_MAX) if self.backend == "gloo" else self._timeout,
            device_id=device if device.type == "cuda" else None,
        )
        if self.backend == "gloo":
            torch_private.set_group_timeout(self._timeout)
        self._interruption.raise_if_over()

    def _connect(self, seat: Seat) -> None:
        address = (seat.master_addr, seat.master_port)
        if not seat.master_port:
            raise ElasticError(f"round {seat.round} has no store in which its ranks can meet")
        if self._address != address:
            limit = timedelta(seconds=STORE_SECONDS_MAX)
            self._client = dist.TCPStore(*address, is_master=False, wait_for_workers=False, timeout=limit)
            self._address = address

    def meet(self, place: str, world: int) -> None:
        """Waits until all ranks of the round have come to this place. Raises `Interrupted` if the round ends before."""
        if self.store.add(f"{place}/count", 1) == world:
            self.store.set(f"{place}/all", "")
        self.store.wait([f"{place}/all"])

    def is_broken(self) -> bool:
        """Returns whether a connection to another rank has ended, so that gradients may be wrong even if nothing was raised."""
        return self._connections.has_ended_one()

    @property
    def uses_nccl(self) -> bool:
        """Whether collectives are aborted rather than cut off."""
        return "nccl" in self.backend

    def abort(self) -> None:
        """Ends all collectives under way with an error. Called by the control thread."""
        aborted = torch_private.abort_nccl_groups()
        self._connections.cut()
        if aborted:
            # Neither this thread nor the training thread may wait for the threads of aborted groups to end.
            self._leaving = threading.Thread(target=_let_go, args=(aborted, self._are_forgotten), name="enn-leaving", daemon=True)
            self._leaving.start()

    def destroy(self) -> None:
        """Ends the groups of the last round as `destroy_process_group` does, unless the script has done so."""
        if dist.is_initialized():
            dist.destroy_process_group()
        if self._leaving is not None:
            self._leaving.join(LEAVE_SECONDS_MAX)
        self.store = None

    def forget(self) -> None:
        """The training thread has left the round: its groups are no more."""
        torch_private.forget_groups()
        self._are_forgotten.set()
        self._connections.forget()
        self.store = None


def _let_go(groups: list, are_forgotten: threading.Event) -> None:
    """Drops the last references to groups, once the training thread has dropped its own."""
    are_forgotten.wait()
    groups.clear()
