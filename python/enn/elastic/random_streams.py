"""The random states of a process: Python, NumPy (if it is imported), torch on the CPU and on the current CUDA device."""

import ctypes
import hashlib
import pickle
import random
import sys
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# 624 words of 32 bits and the position.
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
        state = _python_words(), random._inst.gauss_next
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


def _words_by_interface() -> bytes:
    words = random.getstate()[1]
    return array("I", (words[-1], *words[:-1])).tobytes()


def _words_by_address() -> bytes:
    # Behind the head of the object are the position and the words. To ask for a tuple of them takes forty times as long.
    return ctypes.string_at(id(random._inst) + object.__basicsize__, _MT19937_BYTES)


# The position, then the words, of the generator of the module `random`.
_python_words = _words_by_address if sys.implementation.name == "cpython" and _words_by_address() == _words_by_interface() else _words_by_interface


def _set_python(packed: bytes) -> None:
    raw, gauss_next = pickle.loads(packed)
    position, *words = array("I", raw)
    random.setstate((3, (*words, position), gauss_next))


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
        states["cuda"] = _bytes_of(torch.cuda.default_generators[torch.cuda.current_device()].get_state())
    return states


def restore(states: dict[str, bytes]) -> None:
    """Puts states back. A stream that the states do not have stays as it is."""
    _set_python(states["python"])
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
