"""The standard streams: captured while preloading, and made anew below the same objects in a worker."""

import ctypes
import io
import os
import sys

import select

_LIBC = ctypes.CDLL(None)
# Python was started with -u or PYTHONUNBUFFERED; sys.flags does not tell.
UNBUFFERED = bool(getattr(sys.__stdout__, "write_through", False))
STANDARD = (sys.__stdin__, sys.__stdout__, sys.__stderr__)
CAPTURED_BYTES_MAX = 1 << 20


def flush_all():
    """Empties the buffers of Python's and of C's streams."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    _LIBC.fflush(None)


class Capture:
    """Captures what is printed while preloading in files in memory: two for Python's streams, two for the descriptors.

    Python's own text is kept apart, because at the hand-out it belongs to whatever sys.stdout is then.
    """

    def __init__(self):
        self.files = [os.memfd_create(name) for name in ("stdout", "stderr", "descriptor 1", "descriptor 2")]
        self.saved = [os.dup(1), os.dup(2)]
        for number in (1, 2):
            os.dup2(self.files[number + 1], number, inheritable=True)
            renew(STANDARD[number], number, "w", self.files[number - 1])

    def sizes(self):
        # Every writer appends, so that the end is where the next one writes; half as dear as fstat.
        return [os.lseek(file, 0, os.SEEK_END) for file in self.files]

    def stop(self):
        """Puts streams and descriptors back; returns what was captured, four texts of bounded size."""
        try:
            flush_all()
        finally:
            for number, saved in enumerate(self.saved, 1):
                os.dup2(saved, number, inheritable=True)
                os.close(saved)
                renew(STANDARD[number], number, "w")
        texts = [os.pread(file, CAPTURED_BYTES_MAX, 0) for file in self.files]
        for file in self.files:
            os.close(file)
        return texts


def print_again(which, data):
    """Prints what an import printed: through sys.stdout (0) or sys.stderr (1), or to descriptor 1 (2) or 2 (3)."""
    if which >= 2:
        write_all(which - 1, data)
        return
    stream = sys.stdout if which == 0 else sys.stderr
    try:
        stream.write(data.decode(stream.encoding or "utf-8", "surrogateescape"))
    except Exception:
        # Where the script has no such stream, an import's print is nobody's loss.
        pass


def renew(stream, number, mode, instead=None):
    """Makes the stream what it would be if Python had just opened the descriptor: see create_stdio in CPython."""
    if stream is None:
        return
    captured = instead is not None
    buffer = io.open(instead if captured else number, mode + "b", 0 if mode == "w" and (UNBUFFERED or captured) else -1,
                     closefd=False)
    raw = getattr(buffer, "raw", buffer)
    raw.name = stream.name
    line_buffering = not UNBUFFERED and (raw.isatty() or number == 2)
    stream.__init__(buffer, encoding=stream.encoding, errors=stream.errors, newline="\n",
                    line_buffering=line_buffering, write_through=UNBUFFERED or captured)
    stream.mode = mode


def renew_all():
    for number, mode in enumerate("rww"):
        renew(STANDARD[number], number, mode)


def write_all(number, data):
    """Writes to a descriptor what an import would have printed; a closed reader is the script's to notice."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(number, view):]
        except BlockingIOError:
            select.select([], [number], [], 1.0)
        except OSError:
            return
