"""All that needs functions of torch which are not part of its interface, and the releases that were tried.

`RELEASES` says for each release how process groups are aborted. A release that is not in the table, or that lacks a name which is used
here, is run without recovery: `unsupported` says why.
"""

import ctypes
import importlib
import os
import re
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from .errors import ElasticError

# How a release ends a collective that other ranks have left: NCCL by `abort()` of a group, Gloo (whose `abort()` does nothing) by
# cutting the connections that its groups have opened.
NCCL_ABORT_GLOO_CUT = "nccl_abort_gloo_cut"
RELEASES = {
    (2, 8): NCCL_ABORT_GLOO_CUT,
    (2, 9): NCCL_ABORT_GLOO_CUT,
    (2, 10): NCCL_ABORT_GLOO_CUT,
    (2, 11): NCCL_ABORT_GLOO_CUT,
    (2, 12): NCCL_ABORT_GLOO_CUT,
    (2, 13): NCCL_ABORT_GLOO_CUT,
    (2, 14): NCCL_ABORT_GLOO_CUT,
    (2, 15): NCCL_ABORT_GLOO_CUT,
}
# Names in `torch.distributed.distributed_c10d` that are used below.
_C10D_NAMES = ("_world", "_update_default_pg", "_unregister_all_process_groups", "_new_process_group_helper", "_set_pg_timeout")
# CU_STREAM_WAIT_VALUE_EQ of the CUDA driver.
_WAIT_UNTIL_EQUAL = 1
_WORLD_MAPS = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_to_tag", "tags_to_pg", "pg_coalesce_state")
# Errors of Gloo and NCCL are plain `RuntimeError`s in some places; their texts name the library or the connection.
_TEXT_OF_GROUPS = re.compile(r"gloo|NCCL|ProcessGroup|process group|Connection (closed|reset)|c10d|all_?reduce", re.IGNORECASE)


def unsupported() -> str | None:
    """Returns why this release of torch cannot take part in a recovery, or `None` if it can."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version not in RELEASES:
        known = sorted(RELEASES)
        first, last = (".".join(map(str, release)) for release in (known[0], known[-1]))
        return f"torch {torch.__version__} was not tried with ENN, which knows {first} to {last}"
    if not dist.is_available():
        return "this build of torch has no torch.distributed"
    c10d = dist.distributed_c10d
    missing = [name for name in _C10D_NAMES if not hasattr(c10d, name)]
    missing += [f"_world.{name}" for name in _WORLD_MAPS if not missing and not hasattr(c10d._world, name)]
    if missing:
        return f"torch {torch.__version__} has no torch.distributed.distributed_c10d.{missing[0]}"
    return None


def import_ahead() -> None:
    """Imports what the first optimizer and the first `DistributedDataParallel` import, which takes a second or more."""
    for name in ("torch._dynamo", "torch.distributed.fsdp", "torch.nn.parallel.distributed"):
        try:
            importlib.import_module(name)
        except ImportError:
            # Whoever needs it will say so.
            pass


def group_names() -> list[str]:
    """Returns the names of the process groups of this process."""
    return [str(name) for name in dist.distributed_c10d._world.pg_names.values()]


def is_error_of_groups(error: BaseException) -> bool:
    """Returns whether an exception says that a collective failed, which may be because another rank has died."""
    if isinstance(error, (ElasticError, torch.OutOfMemoryError)):
        return False
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, (RuntimeError, ValueError)) and _TEXT_OF_GROUPS.search(str(error)) is not None


def set_group_timeout(timeout: timedelta) -> None:
    """Sets how long a collective of the default group may take."""
    dist.distributed_c10d._set_pg_timeout(timeout)


class ConnectionsOfGroups:
    """The connections that process groups have opened, among all of the process."""

    def __init__(self):
        self._before = None
        self._inodes: dict[str, int] = {}
        self._watched: dict[int, int] = {}
        self._poll = select.poll()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While this lasts, connections that are opened belong to groups, also those of groups that user code makes."""
        c10d = dist.distributed_c10d
        make = c10d._new_process_group_helper

        def make_and_note(*args, **kwargs):
            backend = kwargs["backend"] if "backend" in kwargs else args[3]
            self._before = self._before or set(_connections())
            try:
                return make(*args, **kwargs)
            finally:
                # A collective of NCCL does not end when a connection does, but when it is aborted.
                self._note_new(is_watched=str(backend) != "nccl")
                self._before = None

        c10d._new_process_group_helper = make_and_note
        try:
            yield
        finally:
            c10d._new_process_group_helper = make

    def _note_new(self, is_watched: bool) -> None:
        for inode, descriptor in _connections().items():
            if inode in self._before:
                continue
            self._inodes[inode] = descriptor
            if is_watched:
                self._watched[descriptor] = int(inode.removeprefix("socket:[").removesuffix("]"))
                self._poll.register(descriptor, select.POLLRDHUP | select.POLLHUP | select.POLLERR)

    def has_ended_one(self) -> bool:
        """Returns whether one of them has ended, here or at its other end: a collective has failed or will."""
        if not self._watched:
            return False
        try:
            is_replaced = any(os.fstat(descriptor).st_ino != inode for descriptor, inode in self._watched.items())
        except OSError:
            return True
        return is_replaced or bool(self._poll.poll(0))

    def cut(self) -> None:
        """Ends all of them in both directions. The collectives on them fail at once, here and in the other ranks."""
        before = self._before
        for inode, descriptor in _connections().items():
            is_being_made = before is not None and inode not in before
            if inode in self._inodes or is_being_made:
                _shut(descriptor)

    def forget(self) -> None:
        """The groups are gone."""
        self._inodes = {}
        self._watched = {}
        self._poll = select.poll()


def _connections() -> dict[str, int]:
    """Returns the descriptors of the internet connections of this process by the numbers of their sockets."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:") and _is_connection(int(name)):
            found[target] = int(name)
    return found


def _is_connection(descriptor: int) -> bool:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            is_listening = copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            return copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM and not is_listening
    except OSError:
        return False


def _shut(descriptor: int) -> None:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as copy:
            copy.shutdown(socket.SHUT_RDWR)
    except OSError:
        # It has ended by itself.
        pass


def abort_nccl_groups() -> list:
    """Aborts all groups that use NCCL, and returns them. May be called while another thread waits for a collective of theirs.

    Whoever lets go of the last reference to one of them waits until its watchdog ends. A watchdog that has seen the connection to another
    host fail sleeps before it does, four times TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC.
    """
    backends = []
    if not dist.is_nccl_available():
        return backends
    for group in sorted(dist.distributed_c10d._world.pg_names, key=lambda one: one.group_name, reverse=True):
        try:
            backend = group._get_backend(torch.device("cuda"))
        except RuntimeError:
            continue
        if isinstance(backend, dist.ProcessGroupNCCL):
            backends.append(backend)
    if backends:
        # One NCCL group call around them: aborts of several communicators could wait for each other.
        backends[-1]._group_start()
        for backend in backends:
            backend.abort()
        backends[-1]._group_end()
    return backends


def forget_groups() -> None:
    """Makes torch forget all process groups without talking to other ranks, so that the next default group can be made."""
    c10d = dist.distributed_c10d
    c10d._update_default_pg(None)
    for name in _WORLD_MAPS:
        getattr(c10d._world, name).clear()
    c10d._unregister_all_process_groups()
    c10d._world.group_count = 0


def scaler_tensors(scaler) -> dict[str, torch.Tensor | None]:
    """Returns the tensors in which a `GradScaler` keeps its scale, without waiting for the device; `None` before its first use."""
    return {"_scale": scaler._scale, "_growth_tracker": scaler._growth_tracker}


def set_scaler_tensors(scaler, tensors: dict[str, torch.Tensor | None]) -> None:
    """Puts copies of such tensors into a `GradScaler`, which then stands between two steps."""
    for name, tensor in tensors.items():
        setattr(scaler, name, None if tensor is None else tensor.clone())
    scaler._per_optimizer_states.clear()


def copy_tensors(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copies tensors in as few kernels as possible, without waiting for the device."""
    if targets:
        with torch.no_grad():
            torch._foreach_copy_(targets, sources, non_blocking=True)


def stream_wait(tensor: torch.Tensor):
    """Returns a function that makes the current stream wait until an int32 in pinned memory is 0, or `None` where the driver cannot."""
    try:
        wait = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2
    except (OSError, AttributeError):
        return None
    wait.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint)
    address = tensor.data_ptr()

    def enqueue() -> bool:
        return wait(torch.cuda.current_stream().cuda_stream, address, 0, _WAIT_UNTIL_EQUAL) == 0

    return enqueue if enqueue() else None


def register_host_memory(tensor: torch.Tensor) -> bool:
    """Makes copies from the device into this memory, which begins at a page, asynchronous. Returns whether that is possible.

    Where it is not (files of most file systems, other than memory file systems) copies wait for the device.
    """
    error = torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.numel() * tensor.element_size(), 0)
    if int(error) == 0:
        return True
    try:
        # The next call would report the error; it is reported here, and forgotten.
        torch.empty(1, device="cuda").zero_()
    except RuntimeError:
        pass
    return False


def unregister_host_memory(tensor: torch.Tensor) -> None:
    """Reverses `register_host_memory`, before the memory is unmapped."""
    torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the part of a `DTensor` that this rank has, which is the tensor's own memory; of others the tensor itself."""
    return getattr(tensor, "_local_tensor", tensor)
