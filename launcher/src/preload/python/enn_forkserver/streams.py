"""The standard streams: captured while preloading, and made anew below the same objects in a worker."""

import ctypes
import io
import os
import sys

import select

_LIBC = ctypes.CDLL(None)
# Python was started with -u or PYTHONUNBUFFERED; sys.flags does not tell.
UNBUFFERED = bool(getattr(sys.__stdout__, "write_through", False))
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
    """What is printed while preloading, by Python or by C, goes to two files in memory."""

    def __init__(self):
        self.buffered = not UNBUFFERED
        self.saved = [os.dup(1), os.dup(2)]
        self.files = [os.memfd_create("stdout"), os.memfd_create("stderr")]
        for number, file in enumerate(self.files, 1):
            os.dup2(file, number, inheritable=True)

    def flush(self):
        if self.buffered:
            flush_all()

    def sizes(self):
        return [os.fstat(file).st_size for file in self.files]

    def read(self, number, start, end):
        """What was printed to descriptor 1 or 2 between two sizes."""
        return os.pread(self.files[number - 1], end - start, start)

    def stop(self):
        """Puts the descriptors back; what was captured is returned as two texts of bounded size."""
        try:
            flush_all()
        finally:
            for number, saved in enumerate(self.saved, 1):
                os.dup2(saved, number, inheritable=True)
                os.close(saved)
        texts = [os.pread(file, CAPTURED_BYTES_MAX, 0) for file in self.files]
        for file in self.files:
            os.close(file)
        return texts


def renew(stream, number, mode):
    """Makes the stream object what it would be if Python had just opened the descriptor (see create_stdio in CPython)."""
    if stream is None:
        return
    buffer = io.open(number, mode + "b", 0 if UNBUFFERED and mode == "w" else -1, closefd=False)
    raw = getattr(buffer, "raw", buffer)
    raw.name = stream.name
    line_buffering = not UNBUFFERED and (raw.isatty() or number == 2)
    stream.__init__(buffer, encoding=stream.encoding, errors=stream.errors, newline="\n",
                    line_buffering=line_buffering, write_through=UNBUFFERED)
    stream.mode = mode


def renew_all():
    for stream, number, mode in ((sys.__stdin__, 0, "r"), (sys.__stdout__, 1, "w"), (sys.__stderr__, 2, "w")):
        renew(stream, number, mode)


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
