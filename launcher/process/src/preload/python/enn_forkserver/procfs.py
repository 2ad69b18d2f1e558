"""The command line and the environment of a process in /proc."""

import ctypes
import os
import struct

PR_SET_PDEATHSIG = 1
PR_SET_MM = 35
PR_SET_MM_MAP = 14
PR_SET_MM_MAP_SIZE = 15
PR_SET_CHILD_SUBREAPER = 36
PR_SET_PTRACER = 0x59616D61
_LIBC = ctypes.CDLL(None, use_errno=True)
_kept = []


def _control(option, value):
    _LIBC.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def die_with_parent(number):
    """The signal that the kernel sends when the thread that is now the parent ends."""
    _control(PR_SET_PDEATHSIG, number)


def adopt_orphans():
    """Makes this process the parent of those of its descendants whose own parents end."""
    _control(PR_SET_CHILD_SUBREAPER, 1)


def let_trace(pid):
    """Lets a process that is no ancestor look into this one, where Yama would not."""
    _control(PR_SET_PTRACER, pid)


def children():
    """The pids of this process's children."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb", buffering=0) as file:
            return [int(pid) for pid in file.read(1 << 20).split()]
    except OSError:
        # A kernel without CONFIG_PROC_CHILDREN.
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if parent_of(pid) == os.getpid()]


def parent_of(pid):
    """The pid of a process's parent; 0 when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return int(file.read(4096).rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def _numbers():
    """The fields of /proc/self/stat after the name, by their numbers in proc(5)."""
    with open("/proc/self/stat", "rb", buffering=0) as file:
        fields = file.read(4096).rpartition(b")")[2].split()
    return {number: int(text) for number, text in enumerate(fields[1:], 4)}


def initial_environment():
    """The environment that this process was executed with: what Python and .pth files changed since is not in it."""
    with open("/proc/self/environ", "rb") as file:
        entries = [entry.partition(b"=") for entry in file.read().split(b"\0") if b"=" in entry]
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in reversed(entries)}


def can_move():
    """Whether the kernel may be told another place for what it shows."""
    size = ctypes.c_uint()
    zero = ctypes.c_ulong(0)
    return _LIBC.prctl(PR_SET_MM, ctypes.c_ulong(PR_SET_MM_MAP_SIZE), ctypes.byref(size), zero, zero) == 0


def show(args, environment):
    """Makes /proc/self/cmdline and environ those of an executed process. Needs no privilege.

    The kernel is told another place for both (PR_SET_MM_MAP). A kernel without CONFIG_CHECKPOINT_RESTORE refuses; then
    what fits is written over the old text.
    """
    line = b"".join(os.fsencode(arg) + b"\0" for arg in args)
    block = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    at = _numbers()
    if not _move(line, block, at):
        for text, start, end in ((line, at[48], at[49]), (block, at[50], at[51])):
            size = end - start
            if size > 0:
                text = text if len(text) <= size else text[:size - 1] + b"\0"
                ctypes.memmove(start, text + bytes(size - len(text)), size)


def _move(line, block, at):
    # Not mmap.mmap: its object would be visible to gc, and ctypes holds the page just as well until the process ends.
    page = ctypes.create_string_buffer(line + block, len(line) + len(block) + 1)
    _kept.append(page)
    start = ctypes.addressof(page)
    middle = start + len(line)
    _LIBC.sbrk.restype = ctypes.c_void_p
    brk = _LIBC.sbrk(ctypes.c_long(0)) or 0
    layout = struct.pack("<12QII", at[26], at[27], at[45], at[46], at[47], brk, at[28],
                         start, middle, middle, middle + len(block), 0, 0, 0xFFFFFFFF)
    size = ctypes.c_ulong(len(layout))
    return _LIBC.prctl(PR_SET_MM, ctypes.c_ulong(PR_SET_MM_MAP), layout, size, ctypes.c_ulong(0)) == 0
