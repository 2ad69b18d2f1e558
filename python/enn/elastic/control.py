"""The control thread of a worker: it owns the socket to the broker, whatever the training thread is doing.

When a round breaks, it sets the flag, aborts the process groups, and makes the training thread leave its function. It answers for the
training thread where that is outside the function, or in `uninterrupted()`.
"""

import os
import queue
import select
import socket
import sys
import threading
import time
import traceback

from .interruption import Interruption
from .messages import PROTOCOL, FrameReader, ProtocolError, Seat, encode, seat_of
from .stalls import StallWatch

# Period of reports of progress, and of looks at a training function that is to be left.
PROGRESS_MS = 100
LOOK_MS = 10
# Time for a failed collective to end the training function, before an exception is raised in it, and between two of those.
GRACE_SECONDS = 0.05
AGAIN_SECONDS = 0.25
# Time after which the stack of a thread that does not leave its function is printed. The supervisor kills it after ten seconds.
STUCK_SECONDS = 8.0


class Control:
    """The connection to the broker, and what came over it.

    `on_broken()` aborts the process groups; it is called in the control thread. `on_stop()` is called there repeatedly once the launcher
    has asked for the end, until it returns whether the training thread has to leave its function now.
    """

    def __init__(self, path: str, worker: int, interruption: Interruption, on_broken, on_stop):
        self._path = path
        self._worker = worker
        self._socket = socket.socket(socket.AF_UNIX)
        self._send_lock = threading.Lock()
        self._answer_lock = threading.Lock()
        self._interruption = interruption
        self._on_broken = on_broken
        self._on_stop = on_stop
        self._seats: queue.SimpleQueue[Seat | None] = queue.SimpleQueue()
        self._answered = -1
        self._reported = -1
        self._leaving = -1
        self._leaving_since = None
        self._stuck_is_said = False
        self._next_raise = 0.0
        self._is_interrupted_by_stop = False
        self._wake = os.eventfd(0)
        self.stalls = StallWatch()
        self.is_attached = False
        self.is_participating = False
        self.is_stopping = False
        # A round has begun without this worker, and it waits.
        self.is_parked = False
        self.round = -1
        self._parts = 0
        # The last step that is known to be applied, and the last one that was begun.
        self.step = 0
        self.position = 0

    # What the training thread calls.

    def attach(self) -> None:
        """Connects to the broker, which gives this worker its seat or takes it for a spare that is ready."""
        self._socket.connect(self._path)
        self._socket.settimeout(10)
        self.is_attached = True
        self._send("attach", protocol=PROTOCOL, worker=self._worker, pid=os.getpid())
        if self._parts:
            self._send("parts", parts=self._parts)
        threading.Thread(target=self._run, name="enn-control", daemon=True).start()

    def tell_parts(self, parts: int) -> None:
        """Tells the launcher into how many equal parts a step can be cut, now or when this worker attaches; 0: nothing is known of that."""
        is_new = parts not in (0, self._parts)
        self._parts = parts or self._parts
        if is_new and self.is_attached:
            self._send("parts", parts=parts)

    def participate(self) -> None:
        """The training function is about to be entered: from now on the training thread itself leaves broken rounds."""
        self.is_participating = True
        os.eventfd_write(self._wake, 1)

    def next_seat(self) -> Seat | None:
        """Waits for a seat in a round that has not ended yet. `None`: there comes none, because of a stop or a lost connection."""
        while True:
            if (self.is_stopping or not self.is_attached) and self._seats.empty():
                return None
            seat = self._seats.get()
            if seat is None or seat.round > self._answered:
                return seat

    def ready(self, round_number: int, step: int) -> None:
        """The worker has joined the groups of the round and has the state after `step` steps."""
        self.step = step
        self.position = step
        self._reported = step
        self._send("ready", round=round_number, step=step)

    def halted(self, round_number: int, step: int, whole: bool) -> None:
        """The worker has left the groups of the round. Sends nothing if the control thread has said so already."""
        with self._answer_lock:
            if round_number <= self._answered:
                return
            self._answered = round_number
        self._send("halted", round=round_number, step=step, whole=whole)

    def failed(self, error: str) -> None:
        """The worker cannot go on, and ends by itself."""
        self._send("failed", error=error[:2000])

    def detach(self) -> None:
        """Closes the connection: from now on a failure restarts all workers."""
        self.is_participating = False
        self.is_attached = False
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            # The broker has closed it already.
            pass

    # The control thread.

    def _send(self, message: str, **fields) -> None:
        try:
            with self._send_lock:
                self._socket.sendall(encode(message, **fields))
        except OSError:
            # The reading side sees the end of the connection and says so.
            self.is_attached = False

    def _run(self) -> None:
        reader = FrameReader()
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        error = None
        try:
            while self.is_attached:
                readable = {descriptor for descriptor, _ in poll.poll(self._patience_ms())}
                if self._wake in readable:
                    os.eventfd_read(self._wake)
                if self._socket.fileno() in readable:
                    received = self._socket.recv(1 << 16)
                    if not received:
                        break
                    for message in reader.feed(received):
                        self._on_message(message)
                self._look_after()
        except (OSError, ProtocolError) as caught:
            error = caught
        if error is not None and self.is_attached:
            _say(f"the connection to the launcher is of no use, failures are not recovered from: {error}")
        self.is_attached = False
        self._seats.put(None)
        self._socket.close()

    def _patience_ms(self) -> int | None:
        if self._leaving_since is not None or self.is_stopping:
            return LOOK_MS
        return PROGRESS_MS if self.is_participating else None

    def _on_message(self, message: dict) -> None:
        kind = message["message"]
        if kind == "assigned":
            seat = seat_of(message)
            self.round = seat.round
            self.is_parked = False
            self._seats.put(seat)
        elif kind == "broken":
            self._break(message["round"], message["reason"])
        elif kind == "stop":
            self.is_stopping = True
            self._seats.put(None)
        elif kind == "parked":
            self.is_parked = True
        elif kind == "refused":
            _say(f"the launcher does not accept this worker, failures are not recovered from: {message['error']}")
            self.is_attached = False
        else:
            raise ProtocolError(f"the message {kind!r} is unknown")

    def _break(self, round_number: int, reason: str) -> None:
        self._interruption.end_round(round_number, reason)
        if not self.is_participating:
            # The script has not come to its training function yet.
            self.halted(round_number, self.step, whole=False)
            return
        self._begin_to_leave(round_number)

    def _begin_to_leave(self, round_number: int) -> None:
        self._leaving = round_number
        self._leaving_since = time.monotonic()
        self._next_raise = self._leaving_since + GRACE_SECONDS
        self._stuck_is_said = False
        try:
            self._on_broken()
        except Exception as error:
            # The training thread may be making or losing a group just now. It leaves the round all the same.
            _say(f"process groups could not be aborted: {error}")

    def _look_after(self) -> None:
        """What has to be done while no message comes."""
        if self.is_stopping and not self._is_interrupted_by_stop and self._on_stop():
            self._is_interrupted_by_stop = True
            self._interruption.end_round(self.round, "the launcher asks for the end")
            self._begin_to_leave(self.round)
        if self._leaving_since is not None:
            self._drive_out()
        elif self.is_participating and self.round >= 0:
            is_changed = self.stalls.look(self.round, self.step)
            if self.step != self._reported:
                self._reported = self.step
                self._send("progress", round=self.round, step=self.step)
            elif is_changed:
                self._send("stalled", round=self.round, step=self.step, waits=self.stalls.is_waiting)

    def _drive_out(self) -> None:
        now = time.monotonic()
        if self._interruption.is_only_protected() and not self._is_interrupted_by_stop:
            # A checkpoint is being written: the state is that of a whole step, and the training thread joins when it is done.
            self.halted(self._leaving, self.step, whole=True)
        if self._interruption.is_left():
            self._leaving_since = None
            return
        if now >= self._next_raise and self._interruption.raise_in_training_thread():
            self._next_raise = now + AGAIN_SECONDS
        if now > self._leaving_since + STUCK_SECONDS and not self._stuck_is_said:
            self._stuck_is_said = True
            self._print_stack()

    def _print_stack(self) -> None:
        frame = sys._current_frames().get(threading.main_thread().ident)
        _say("the training function does not return, its stack is:\n" + "".join(traceback.format_stack(frame)))


def _say(sentence: str) -> None:
    print(f"enn: {sentence}", file=sys.stderr, flush=True)
