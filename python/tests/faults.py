"""Faults that a test orders, at named places of the training script and of the package.

The orders are the lines of `orders` in the folder ENN_TEST_DIR, each a JSON object:

- `id`: a name; an order is carried out once in a run, by whichever process comes first;
- `place`: one of `PLACES`, or `step`, before a step of the script;
- `rank`, or `null` for any; `step` and `round`: the least number of steps done and the first round in which it counts;
- `action`: one of `ACTIONS`.

A process that is seated leaves its number in the file `rank-R`. A carried out order leaves the file `done-ID`.
"""

import functools
import json
import os
import signal
import time

from enn.elastic import control, groups, recovery, sampler, seat_memory, steps, transfer, worker

# Where an order may be carried out: the owner of a function, its name, and whether it is before (or after) the call.
PLACES = {
    "load": (sampler.Sampler, "_next", True),
    "backward": (steps.Steps, "_contribute", True),
    "record": (seat_memory.SeatMemory, "write", True),
    "before_update": (steps.Steps, "_before_optimizer", True),
    "look": (steps.Steps, "_begin_to_apply", False),
    "updated": (steps.Steps, "_after_optimizer", False),
    "commit": (steps.Steps, "commit", True),
    "committed": (steps.Steps, "commit", False),
    "end": (groups.RoundGroups, "destroy", True),
    # In a recovery, in the order of time.
    "broken": (control.Control, "_break", True),
    "aborted": (groups.RoundGroups, "abort", False),
    "left": (recovery.Recovery, "_leave_round", True),
    "halted": (recovery.Recovery, "_leave_round", False),
    "seated": (worker.ElasticWorker, "take_seat", False),
    "met": (groups.RoundGroups, "meet", False),
    "formed": (groups.RoundGroups, "form", False),
    "sending": (transfer, "broadcast_tensors", True),
    "sent": (transfer, "broadcast_tensors", False),
    "taking_over": (steps.Steps, "take_over", True),
    "taken_over": (steps.Steps, "take_over", False),
    "ready": (control.Control, "ready", True),
}
# Where a spare waits for a seat.
PARKED = "parked"


def install() -> None:
    """Puts the orders' places into the package, if there are orders. The script calls `at("step")`."""
    if not _orders():
        return
    for place, (owner, name, is_before) in PLACES.items():
        setattr(owner, name, _watched(getattr(owner, name), place, is_before))
    control.Control.attach = _watched(control.Control.attach, PARKED, False)


def _watched(function, place: str, is_before: bool):
    @functools.wraps(function)
    def call(*args, **kwargs):
        if is_before:
            at(place)
        result = function(*args, **kwargs)
        if not is_before:
            at(place)
        return result

    return call


def at(place: str) -> None:
    """Carries out the orders for this place."""
    me = worker._worker
    seat = getattr(me, "_seat", None)
    if place == "seated" and seat is not None:
        _leave(f"rank-{seat.rank}", str(os.getpid()))
    for order in _orders():
        if order["place"] == place and _is_due(order, me, seat) and _claim(order["id"]):
            ACTIONS[order["action"]](seat)


def _is_due(order: dict, me, seat) -> bool:
    if order["place"] == PARKED:
        return me is not None and seat is None
    return (
        seat is not None
        and order["rank"] in (None, seat.rank)
        and seat.round >= order["round"]
        and max(me.control.step, seat.step) >= order["step"]
    )


def _claim(name: str) -> bool:
    try:
        with open(os.path.join(_directory(), f"done-{name}"), "x") as file:
            file.write(f"{os.getpid()} {time.monotonic():.4f}\n")
        return True
    except FileExistsError:
        return False


def _directory() -> str:
    return os.environ.get("ENN_TEST_DIR", "")


@functools.cache
def _orders() -> list[dict]:
    try:
        with open(os.path.join(_directory(), "orders")) as file:
            return [json.loads(line) for line in file]
    except FileNotFoundError:
        return []


def _leave(name: str, text: str) -> None:
    path = os.path.join(_directory(), name)
    with open(f"{path}.{text}", "w") as file:
        file.write(text)
    os.replace(f"{path}.{text}", path)


def _others(seat) -> list[int]:
    """Returns the processes that have, or had, the other seats."""
    found = []
    for rank in range(seat.world):
        path = os.path.join(_directory(), f"rank-{rank}")
        if rank != seat.rank and os.path.exists(path):
            with open(path) as file:
                found.append(int(file.read()))
    return found


def _kill(pid: int) -> None:
    """Kills a process of this run, unless it has died before."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            is_of_this_run = f"ENN_TEST_DIR={_directory()}".encode() in file.read().split(b"\0")
        if is_of_this_run:
            os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        pass


def _kill_one_more(seat) -> None:
    for pid in _others(seat)[:1]:
        _kill(pid)
    _kill(os.getpid())


def _kill_others(seat) -> None:
    for pid in _others(seat):
        _kill(pid)


def _kill_all(seat) -> None:
    _kill_others(seat)
    _kill(os.getpid())


def _raise(_seat) -> None:
    raise ValueError("an exception that a test has ordered")


def _hang(_seat) -> None:
    while True:
        time.sleep(0.01)


# What happens at a place. `hang` can be left by an exception, `hang_in_c` cannot.
ACTIONS = {
    "kill": lambda _seat: _kill(os.getpid()),
    "kill_two": _kill_one_more,
    "kill_others": _kill_others,
    "kill_all": _kill_all,
    "stop": lambda _seat: os.kill(os.getpid(), signal.SIGSTOP),
    "raise": _raise,
    "hang": _hang,
    "hang_in_c": lambda _seat: time.sleep(1e6),
}
