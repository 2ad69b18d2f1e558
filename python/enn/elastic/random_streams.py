"""The random states of a process: Python, NumPy (if it is imported), torch on the CPU and on the current CUDA device."""

import ctypes
import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def capture() -> dict:
    """Returns the states, as picklable values: they are not changed by later draws."""
    states = {"python": random.getstate(), "torch": _bytes_of(torch.get_rng_state())}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = _bytes_of(torch.cuda.get_rng_state())
    return states


def restore(states: dict) -> None:
    """Puts states back. A stream that the states do not have stays as it is."""
    random.setstate(states["python"])
    torch.set_rng_state(_tensor_of(states["torch"]))
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in states:
        numpy.random.set_state(states["numpy"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(_tensor_of(states["cuda"]))


def seed_all(*parts: object) -> None:
    """Seeds all streams of this process by a digest of some values."""
    seed = digest(*parts)
    random.seed(seed)
    torch.manual_seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))


def digest(*parts: object) -> int:
    """Returns a number below 2^63 that depends on some values alone, in each process and release."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


@contextmanager
def kept() -> Iterator[None]:
    """Puts the states back at the end, so that what is drawn inside does not count."""
    states = capture()
    try:
        yield
    finally:
        restore(states)


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.numel())


def _tensor_of(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
