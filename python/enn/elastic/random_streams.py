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
_MT19937_WORDS = 625
# Bytes of the state of torch's generator on the CPU: seed and position come first, and normal numbers in store last.
_TORCH_HEAD_BYTES = 64
_TORCH_TAIL_BYTES = 64


class _Words:
    """The memory of a Mersenne Twister of Python or NumPy. A draw changes its position, or all of its words."""

    def __init__(self, owner: object, address: int, position_is_first: bool):
        self.owner = owner
        self._words = (ctypes.c_uint32 * _MT19937_WORDS).from_address(address)
        self._position = 0 if position_is_first else _MT19937_WORDS - 1

    def key(self) -> tuple:
        """Returns what differs where the state does."""
        words = self._words
        return words[self._position], words[1], words[2], words[-2], words[-3]

    def raw(self) -> bytes:
        """Returns position and words in the order of the memory."""
        return bytes(self._words)


class _Stream:
    """Saves the work of packing a state that is the same as at the last look: its bytes are the same object then."""

    def __init__(self):
        self._key: object = None
        self._packed = b""

    def packed(self, key: object, pack) -> bytes:
        """Returns what `pack()` gives, or gave when the key was the same. A key of `None` is never the same."""
        if key is None or key != self._key:
            self._packed = pack()
            self._key = key
        return self._packed

    def forget(self) -> None:
        """The state is another one."""
        self._key = None


_python_stream = _Stream()
_numpy_stream = _Stream()
_torch_stream = _Stream()


def _python_words() -> _Words | None:
    """Returns the memory of the generator of the module `random`, if it is where this build of CPython has it."""
    if sys.implementation.name != "cpython":
        return None
    # Behind the head of the object are the position and the words.
    words = _Words(random._inst, id(random._inst) + object.__basicsize__, position_is_first=True)
    return words if words.raw() == _python_raw() else None


def _python_raw() -> bytes:
    words = random.getstate()[1]
    return array("I", (words[-1], *words[:-1])).tobytes()


_python_memory = _python_words()
_numpy_memory: _Words | None = None


def _python() -> bytes:
    memory = _python_memory
    gauss_next = random._inst.gauss_next
    key = None if memory is None else (memory.key(), gauss_next)
    return _python_stream.packed(key, lambda: pickle.dumps((_python_raw() if memory is None else memory.raw(), gauss_next)))


def _set_python(packed: bytes) -> None:
    raw, gauss_next = pickle.loads(packed)
    position, *words = array("I", raw)
    random.setstate((3, (*words, position), gauss_next))


def _numpy(numpy) -> bytes:
    """Returns the state of `numpy.random`, which takes long to ask for."""
    global _numpy_memory
    generator = getattr(numpy.random, "get_bit_generator", lambda: None)()
    if type(generator).__name__ != "MT19937":
        return pickle.dumps(numpy.random.get_state(), protocol=pickle.HIGHEST_PROTOCOL)
    if _numpy_memory is None or _numpy_memory.owner is not generator:
        _numpy_memory = _Words(generator, generator.ctypes.state_address, position_is_first=False)
    key = None if _numpy_stores_normal else _numpy_memory.key()
    return _numpy_stream.packed(key, lambda: _numpy_anew(numpy))


# While a normal number is in store, a draw may leave the generator as it is.
_numpy_stores_normal = False


def _numpy_anew(numpy) -> bytes:
    global _numpy_stores_normal
    state = numpy.random.get_state()
    _numpy_stores_normal = bool(state[3])
    return pickle.dumps(state, protocol=pickle.HIGHEST_PROTOCOL)


def _torch() -> bytes:
    state = torch.default_generator.get_state()
    address = state.data_ptr()
    size = state.numel()
    tail = ctypes.string_at(address + size - _TORCH_TAIL_BYTES, _TORCH_TAIL_BYTES)
    key = ctypes.string_at(address, _TORCH_HEAD_BYTES), tail
    return _torch_stream.packed(key, lambda: ctypes.string_at(address, size))


def capture() -> dict[str, bytes]:
    """Returns the states, packed. One that is the same as at the last look is the same object."""
    states = {"python": _python(), "torch": _torch()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = _numpy(numpy)
    if torch.cuda.is_initialized():
        states["cuda"] = _bytes_of(torch.cuda.default_generators[torch.cuda.current_device()].get_state())
    return states


def restore(states: dict[str, bytes]) -> None:
    """Puts states back. A stream that the states do not have stays as it is."""
    for stream in (_python_stream, _numpy_stream, _torch_stream):
        stream.forget()
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
