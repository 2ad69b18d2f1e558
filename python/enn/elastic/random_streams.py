"""The random states of a process: Python, NumPy (if it is imported), torch on the CPU and on the current CUDA device."""

import ctypes
import hashlib
import pickle
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# 624 words and the position.
_MT19937_BYTES = 625 * 4


class _Unchanged:
    """Saves the work of packing a state that is the same as at the last look."""

    def __init__(self):
        self._python = None
        self._python_packed = b""
        self._numpy_raw = None
        self._numpy_packed = b""

    def python(self) -> bytes:
        """Returns the state of the module `random`."""
        state = random.getstate()
        if state != self._python:
            self._python = state
            self._python_packed = pickle.dumps(state, protocol=pickle.HIGHEST_PROTOCOL)
        return self._python_packed

    def numpy(self, numpy) -> bytes:
        """Returns the state of `numpy.random`, which takes long to ask for."""
        raw = _raw_state(numpy)
        if raw is None or raw != self._numpy_raw:
            state = numpy.random.get_state()
            # While a normal number is in store, a draw may leave the generator as it is.
            self._numpy_raw = None if state[3] else raw
            self._numpy_packed = pickle.dumps(state, protocol=pickle.HIGHEST_PROTOCOL)
        return self._numpy_packed


_unchanged = _Unchanged()


def _raw_state(numpy) -> bytes | None:
    """Returns the memory of NumPy's global generator, if it is the usual one."""
    generator = getattr(numpy.random, "get_bit_generator", lambda: None)()
    if type(generator).__name__ != "MT19937":
        return None
    return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)


def capture() -> dict[str, bytes]:
    """Returns the states, packed."""
    states = {"python": _unchanged.python(), "torch": _bytes_of(torch.get_rng_state())}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = _unchanged.numpy(numpy)
    if torch.cuda.is_initialized():
        states["cuda"] = _bytes_of(torch.cuda.get_rng_state())
    return states


def restore(states: dict[str, bytes]) -> None:
    """Puts states back. A stream that the states do not have stays as it is."""
    random.setstate(pickle.loads(states["python"]))
    torch.set_rng_state(_tensor_of(states["torch"]))
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in states:
        numpy.random.set_state(pickle.loads(states["numpy"]))
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
