"""Makes a fork cheap: the cost of one is that of the page tables, and huge pages need a five-hundredth of them."""

import ctypes

MADV_COLLAPSE = 25
HUGE_BYTES = 2 << 20
_LIBC = ctypes.CDLL(None)


def use_huge_pages():
    """Moves the memory of the heap to huge pages, once; what is allocated later is as always.

    After the imports of PyTorch a fork takes a third of the time. Kernels before 6.1 do not know of this, and where
    huge pages are scarce or forbidden the memory stays where it is.
    """
    for start, end in heap():
        start = -(-start // HUGE_BYTES) * HUGE_BYTES
        end = end // HUGE_BYTES * HUGE_BYTES
        if start < end:
            _LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), ctypes.c_int(MADV_COLLAPSE))


def heap():
    """The writable memory that no file is behind."""
    with open("/proc/self/maps", "rb") as file:
        lines = [line.split() for line in file]
    for line in lines:
        if line[1].startswith(b"rw") and (len(line) < 6 or line[5] == b"[heap]"):
            start, _, end = line[0].partition(b"-")
            yield int(start, 16), int(end, 16)
