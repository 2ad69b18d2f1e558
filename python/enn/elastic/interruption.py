"""How the training function is left when its round is over, whatever it is doing.

The control thread says that a round is over. The thread that trains leaves the function by `Interrupted`: from the optimizer's hook, at the
end of a step, or asynchronously between two instructions. **Invariant:** nothing is raised asynchronously while the thread holds: while a
step is being applied, while a loader is read, and while user code is in `uninterrupted()`.
"""

import ctypes
import threading

from .errors import Interrupted

# Each look-up by index makes a function object of its own, with its own types of arguments.
_set_async_exception = ctypes.pythonapi["PyThreadState_SetAsyncExc"]
_set_async_exception.argtypes = (ctypes.c_ulong, ctypes.py_object)
_clear_async_exception = ctypes.pythonapi["PyThreadState_SetAsyncExc"]
_clear_async_exception.argtypes = (ctypes.c_ulong, ctypes.c_void_p)


class Interruption:
    """What the control thread and the training thread both look at."""

    def __init__(self):
        self._lock = threading.Lock()
        self._round = -1
        self._over = -1
        self._reason = ""
        self._thread = None
        self._holds = 0
        self._protected = 0
        self._sent = False
        self._changed = threading.Condition()

    def begin(self, round_number: int) -> None:
        """The calling thread trains in this round from now on."""
        with self._lock:
            self._round = round_number
            self._thread = threading.get_ident()
            self._holds = 0
            self._protected = 0
            self._sent = False

    def leave(self) -> None:
        """The calling thread has left the training function; nothing is raised in it any more."""
        while True:
            try:
                with self._lock:
                    if self._thread is not None and self._sent:
                        _clear_async_exception(self._thread, None)
                    self._thread = None
                    self._sent = False
                return
            except Interrupted:
                # One that was sent before has arrived here.
                continue

    def end_round(self, round_number: int, reason: str) -> None:
        """The control thread says that a round, and each earlier one, is over."""
        with self._changed:
            self._over = max(self._over, round_number)
            self._reason = reason
            self._changed.notify_all()

    def is_over(self) -> bool:
        """Returns whether the round in which the training thread is has ended."""
        return self._round <= self._over

    def wait_until_over(self, seconds: float) -> bool:
        """Waits until the round is over; returns whether it is."""
        with self._changed:
            return self._changed.wait_for(self.is_over, seconds)

    def raise_if_over(self) -> None:
        """Raises `Interrupted` if the round is over."""
        if self.is_over():
            raise Interrupted(self._reason)

    def hold(self, protected: bool = False) -> None:
        """Keeps asynchronous exceptions off until `release`. Raises `Interrupted` if one was under way."""
        with self._lock:
            if self._sent:
                _clear_async_exception(threading.get_ident(), None)
                raise Interrupted(self._reason)
            self._holds += 1
            self._protected += protected

    def release(self, protected: bool = False) -> None:
        """Ends one `hold`. Raises nothing."""
        with self._lock:
            self._holds -= 1
            self._protected -= protected

    def is_protected(self) -> bool:
        """Returns whether user code is in `uninterrupted()`."""
        return self._protected > 0

    def is_only_protected(self) -> bool:
        """Returns whether the thread holds for `uninterrupted()` and for nothing else, so that its state is that of a whole step."""
        with self._lock:
            return self._thread is not None and self._protected > 0 and self._protected == self._holds

    def is_left(self) -> bool:
        """Returns whether the training thread is outside an ended round."""
        with self._lock:
            return self._thread is None or not self.is_over()

    def raise_in_training_thread(self) -> bool:
        """Raises `Interrupted` in the training thread; returns whether it could: not while that thread holds or is outside."""
        with self._lock:
            can = self._thread is not None and self.is_over() and self._holds == 0
            if can:
                self._sent = True
                _set_async_exception(self._thread, Interrupted)
            return can
