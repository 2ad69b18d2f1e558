"""What makes a step count: the hooks of the optimizers, and the copies of everything small that a discarded step could change.

A step is open until an optimizer's pre-hook has waited for the device and seen that the round is not over. From there to
`state.step += 1` the step is applied as a whole: nothing interrupts it. At its end the small things are copied; a step that is discarded
later is undone by putting them back. **Invariant:** the optimizers' tensors change only in steps that count.

Where Python runs ahead (`guard.py`), the pre-hook waits for the step before the last one only. The steps behind that are pending: the device
skips them if the round ends, and the copies of the last step that it has not skipped are put back.
"""

import operator
import pickle
import sys
import threading
from collections import deque

import torch

from . import random_streams, seat_memory
from .buffers import BufferCopy, Buffers
from .errors import ElasticError, Interrupted
from .guard import STEPS_AHEAD, is_fused
from .late_look import LateLook, first_change
from .seat_memory import CONTRIBUTED, DONE, Packer, SeatMemory
from .small_parts import to_host

OPEN = "open"
APPLYING = "applying"
APPLIED = "applied"
# How long a rank that has lost a connection waits to hear that the round is over. After that the failure is its own.
VERDICT_SECONDS_MAX = 30
_version_of = operator.attrgetter("_version")


class Snapshot:
    """Everything small after a step. `position` counts commits; `is_entry` says that no step has been done yet.

    `sizes` says for how many parameters each optimizer has a state.
    """

    def __init__(self, position: int, step: int, parts: dict, values: bytes, is_entry: bool, sizes: dict[str, int]):
        self.position = position
        self.step = step
        self.parts = parts
        self.values = values
        self.is_entry = is_entry
        self.sizes = sizes
        self.private: Private | None = None


class Private:
    """What a rank alone has after a step: its random states and its buffers. `is_done` is false for what was copied in backward."""

    def __init__(self, position: int, streams: dict, buffers: BufferCopy | None, is_done: bool):
        self.position = position
        self.streams = streams
        self.buffers = buffers
        self.is_done = is_done


def state_sizes(parts) -> dict[str, int]:
    """Returns for how many parameters each optimizer has a state."""
    return {name: len(optimizer.state) for name, optimizer in parts.optimizers.items()}


class Steps:
    """The steps of a state in training. `directory` is where the records of seats are; `None` keeps none."""

    def __init__(self, state, control, groups, interruption, directory):
        self._state = state
        self._groups = groups
        self._control = control
        self._interruption = interruption
        self._directory = directory
        self._hooks = []
        self._late_look = LateLook()
        self._packer = Packer()
        self._first_changes: dict[int, str | None] = {}
        self._memory: SeatMemory | None = None
        self._memory_of = None
        # The step whose record lacks the buffers, which are on their way from the device.
        self._unpublished: int | None = None
        # `None` where no optimizer can skip a step on the device.
        self._guard = state._guard
        self._is_ahead = False
        # Whether the device has skipped the step of the optimizer that is being enqueued is to be looked at behind it.
        self._is_unseen = False
        self._fused: set[int] = set()
        self._pending: deque[Snapshot] = deque()
        self._applied: Snapshot | None = None
        self._trained: list[torch.Tensor] = []
        self._versions: list[int] = []
        # How many steps Python may be ahead of the device.
        self.ahead = STEPS_AHEAD if state._run_ahead else 0
        self._slots = 2 + self.ahead
        self._backward_since_applied = False
        self.position = state.step
        self.phase = OPEN
        self.is_active = False
        self.has_state = False
        self.snapshot: Snapshot | None = None
        self._contributions: dict[int, Private] = {}
        self._contributed = -1
        self.unsettled: dict | None = None
        self.stop_check = None
        self._buffers: Buffers | None = None
        self._copies: dict[tuple[int, int], BufferCopy] = {}
        self.sharded = None
        self.is_ready_late = False

    @property
    def _parts(self):
        return self._state._parts

    def tell_parts(self) -> None:
        """Tells the launcher into how many equal parts a step can be cut."""
        self._control.tell_parts(self._parts.batch_parts)

    def discard_from_now(self) -> None:
        """The round is over: what the device has not begun to apply is not applied. Called by the control thread."""
        if self._guard is not None:
            self._guard.discard_from_now()

    def let_go(self) -> None:
        """All ranks know that the round is over: the device may go on."""
        if self._guard is not None:
            self._guard.let_go()

    # Rounds.

    def enter(self, rank: int) -> None:
        """Prepares for the steps of a round in which this process is `rank`."""
        self._buffers = Buffers(self._parts.modules.values(), self._parts.trained())
        if not self._copies or self._copies[0, DONE].flat.numel() != self._buffers.bytes:
            self._copies = {(slot, kind): self._buffers.new_copy() for slot in range(self._slots) for kind in (CONTRIBUTED, DONE)}
        if self._directory is not None and self._memory_of != (rank, self._buffers.bytes):
            self.close()
            self._memory = SeatMemory(self._directory, rank, self._slots, self._buffers.bytes, self._buffers.is_on_device)
            self._memory_of = (rank, self._buffers.bytes)
        if self._guard is not None:
            self._is_ahead = self._state._run_ahead
            self._fused = {id(one) for one in self._parts.optimizers.values() if is_fused(one)}
            self._trained = self._parts.trained_parameters()
            self._guard.reopen()
            # The control thread says that a round is over before it sets the guard's flag.
            self._interruption.raise_if_over()
        self._first_changes = {id(one): first_change(one) for one in self._parts.optimizers.values()}
        self._register_hooks()
        self._contributed = -1
        self.phase = OPEN

    def adopt_parts(self, rank: int) -> None:
        """The state has other modules and optimizers from now on."""
        self._remove_hooks()
        self.enter(rank)

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def resolve(self) -> None:
        """The round is over, and the device has nothing left to do: steps that it has skipped were not done."""
        if self._guard is None:
            return
        if self._is_ahead and self.phase != OPEN and not self._guard.was_applied(self.position + 1):
            self.phase = OPEN
        while self._pending:
            if not self._guard.was_applied(self._pending[0].position):
                self._pending.clear()
            else:
                self._take_as_applied()
        if self._applied is not None:
            self.snapshot = self._applied
            self.position = self.snapshot.position

    def leave(self) -> bool:
        """The training function was left; returns whether the state is that of a whole step, once `restore` has undone the open one."""
        self._remove_hooks()
        self.is_active = False
        self._late_look.disarm()
        self._is_unseen = False
        if self._guard is not None:
            for optimizer in self._parts.optimizers.values():
                self._guard.take_out(optimizer)
        self._parts.drop_scales()
        self._unpublished = None
        self._pending.clear()
        is_whole = self.phase == OPEN and self.has_state
        self.has_state = is_whole
        self.phase = OPEN
        return is_whole

    def close(self) -> None:
        """Closes the records of the seat, which stay for a successor."""
        if self._memory is not None:
            self._memory.close()
        self._memory = None
        self._memory_of = None

    def _register_hooks(self) -> None:
        for optimizer in self._parts.optimizers.values():
            self._hooks.append(optimizer.register_step_pre_hook(self._before_optimizer))
            self._hooks.append(optimizer.register_step_post_hook(self._after_optimizer))
        trained = self._parts.trained()
        for module in self._parts.modules.values():
            parameters = [one for one in module.parameters() if one.requires_grad and id(one) in trained]
            if parameters:
                # Backward comes to the last one first. Its gradient is part of what the other ranks wait for.
                self._hooks.append(parameters[-1].register_post_accumulate_grad_hook(self._in_backward))

    # A step.

    def _in_backward(self, _parameter: torch.Tensor) -> None:
        self._backward_since_applied = True
        if self.is_active and self.phase == OPEN:
            self._contribute()

    def _contribute(self) -> None:
        """Copies what this rank alone has, as it will be after the step, before others can have finished the step without it."""
        position = self.position + 1
        self._contributed = position
        copy = self._copies[position % self._slots, CONTRIBUTED]
        self._buffers.capture(copy)
        streams = random_streams.capture()
        self._contributions[position % self._slots] = Private(position, streams, copy, is_done=False)
        self._record(position, CONTRIBUTED, copy, streams, None)

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        if not self.is_active:
            return
        if len(args) > 1 or kwargs.get("closure") is not None:
            raise ElasticError("optimizer.step(closure) is not supported: its step could not be undone when a rank dies in the closure")
        if self._interruption.is_protected():
            raise ElasticError("an optimizer steps inside state.uninterrupted(), where a broken step could not be discarded")
        if self.phase == APPLIED:
            if self._backward_since_applied:
                raise ElasticError(
                    "a second optimizer steps after a backward pass of its own: call state.commit() after the first one's step"
                )
            self._start(optimizer)
            return
        if self._contributed != self.position + 1:
            self._interruption.hold()
            try:
                self._contribute()
            finally:
                self._interruption.release()
        if self._is_ahead or id(optimizer) in self._fused:
            self._begin_behind_guard()
        elif (name := self._first_changes.get(id(optimizer))) is not None:
            self._late_look.arm(name, self._look_late)
            return
        else:
            self._settle_pending()
            self._begin_to_apply()
        self._backward_since_applied = False
        self._start(optimizer)

    def _look_late(self) -> None:
        """The step of the optimizer is prepared, and nothing is changed yet."""
        self._settle_pending()
        self._begin_to_apply()
        self._backward_since_applied = False
        self.phase = APPLYING

    def _start(self, optimizer: torch.optim.Optimizer) -> None:
        self.phase = APPLYING
        if self._is_ahead or self._is_unseen:
            self._guard.put_into(optimizer)

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        if self._late_look.disarm():
            # It had nothing to change, or has done it in another way (compiled, for instance): from now on the look comes before.
            self._first_changes[id(optimizer)] = None
            self.phase = APPLYING
            self._look_late()
        if not self.is_active or self.phase != APPLYING:
            return
        if self._guard is not None:
            self._guard.take_out(optimizer)
        if self._is_unseen:
            self._is_unseen = False
            self._look_behind()
        self.phase = APPLIED
        # The device is busy with the optimizer's step now.
        if self._is_ahead:
            self._versions = list(map(_version_of, self._trained))
        else:
            self._publish()

    def _begin_to_apply(self) -> None:
        """Waits until the device has done what was asked, and looks whether that was in a round that is not over."""
        if self.sharded is not None:
            self.sharded.before_step(self.position + 1)
        if torch.cuda.is_initialized():
            stream = torch.cuda.current_stream()
            if not stream.query():
                self._rehearse()
            stream.synchronize()
        if self.sharded is not None:
            self.sharded.publish()
        self._hear_of_broken()
        self._hold_unless_over()

    def _rehearse(self) -> None:
        """While the device is busy, does once what `commit` will do: its code and data are in the CPU's caches then, and it takes a third of
        the time, for which the device might idle."""
        self._parts.small.capture()
        self._packer.pack(random_streams.capture(), self._parts.pickled_values())
        self._interruption.is_over()

    def _hear_of_broken(self) -> None:
        if self._groups.is_broken() and not self._interruption.wait_until_over(VERDICT_SECONDS_MAX):
            raise ElasticError(f"the connection to another rank has ended, and the launcher knows of no failure after {VERDICT_SECONDS_MAX} s")

    def _hold_unless_over(self) -> None:
        self._interruption.hold()
        if self._interruption.is_over() or (self.sharded is not None and not self.sharded.counts(self.position + 1)):
            self._interruption.release()
            raise Interrupted

    def _begin_behind_guard(self) -> None:
        """Lets the optimizer enqueue its step, which the device skips if the round is over when it comes there.

        Where Python runs ahead, no more than `STEPS_AHEAD` steps are pending then; else the device's verdict is waited for behind the step.
        """
        self._interruption.raise_if_over()
        while len(self._pending) >= (STEPS_AHEAD if self._is_ahead else 1):
            self._settle_one()
        self._hear_of_broken()
        self._hold_unless_over()
        position = self.position + 1
        self._guard.read(position, may_stand=self._is_ahead)
        if not self._is_ahead:
            self._guard.mark(position)
            self._is_unseen = True

    def _look_behind(self) -> None:
        """Waits for the verdict on the step that was enqueued. Nothing behind it has been. Raises `Interrupted` if it was skipped."""
        position = self.position + 1
        if not self._guard.is_reached(position):
            self._rehearse()
        self._guard.wait(position)
        if not self._guard.was_applied(position):
            self.phase = OPEN
            self._interruption.release()
            raise Interrupted

    def _settle_one(self) -> None:
        """Waits for the oldest step that is pending. Raises `Interrupted` if the device has skipped it."""
        position = self._pending[0].position
        self._guard.wait(position)
        if not self._guard.was_applied(position):
            raise Interrupted
        self._take_as_applied()

    def _settle_pending(self) -> None:
        while self._pending:
            self._settle_one()

    def settle_all(self) -> None:
        """Waits for all steps that were begun. Raises `Interrupted` if the device has skipped one. Nothing to do where each step waits."""
        if self.is_active:
            self._settle_pending()

    def _take_as_applied(self) -> None:
        self._applied = self._pending.popleft()
        self._control.step = self._applied.position
        if self._memory is not None and self._buffers.is_on_device:
            self._memory.complete(self._applied.position, DONE)

    def _look_for_edits(self) -> None:
        """What user code changes in parameters after an optimizer's step is not skipped with it: from now on each step waits."""
        if self._versions == list(map(_version_of, self._trained)):
            return
        position = self.position + 1
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        if not self._guard.was_applied(position):
            self.has_state = False
            self._interruption.release()
            raise Interrupted
        self._state._wait_from_now("parameters are changed between an optimizer's step and `state.step += 1`")
        self._is_ahead = False

    def commit(self, step: int) -> None:
        """The step is done, and counts; the state has done `step` steps."""
        if not self.is_active or threading.current_thread() is not threading.main_thread():
            self._state._set_step(step)
            return
        if self._interruption.is_protected():
            raise ElasticError("a step ends inside state.uninterrupted(), where it could not be discarded")
        if self.phase == OPEN:
            self._settle_pending()
            self._begin_to_apply()
            self._publish()
            if self._is_ahead:
                self._guard.read(self.position + 1, may_stand=True)
        elif self._is_ahead:
            self._look_for_edits()
        self._state._set_step(step)
        self.take_snapshot(self.position + 1, is_entry=False)
        if self.sharded is not None:
            self.sharded.committed(self.position, self.snapshot.private)
        self.phase = OPEN
        self._control.position = self.position
        if not self._pending:
            self._control.step = self.position
        self._interruption.release()
        self._save_if_due()
        if self.stop_check is not None and self._control.is_stopping:
            self.stop_check(self.position)
        self._interruption.raise_if_over()

    def _save_if_due(self) -> None:
        checkpoints = self._state._checkpoints
        if not checkpoints.is_due(self._state.step):
            return
        self._settle_pending()
        private = self.snapshot.private
        self._interruption.hold()
        try:
            checkpoints.save(self._state, self.position, private.streams, private.buffers)
        finally:
            self._interruption.release()

    def check_end_of_step(self) -> None:
        """The loop body has ended. Raises `ElasticError` if it has applied a step without counting it."""
        if self.is_active and self.phase == APPLIED:
            raise ElasticError("the optimizer has stepped, but `state.step += 1` (or state.commit()) did not follow in the same pass of the loop")

    # Copies.

    def take_snapshot(self, position: int, is_entry: bool, for_successor: bool = True) -> None:
        """Copies all that is small, in memory and for a successor in this seat."""
        sizes = state_sizes(self._parts)
        snapshot = Snapshot(position, self._state.step, self._parts.small.capture(), self._parts.pickled_values(), is_entry, sizes)
        copy = self._copies[position % self._slots, DONE]
        self._buffers.capture(copy)
        snapshot.private = Private(position, random_streams.capture(), copy, is_done=True)
        self.snapshot = snapshot
        self.position = position
        self.has_state = True
        if for_successor:
            self._record(position, DONE, copy, snapshot.private.streams, snapshot.values)
        if self._is_ahead and self.is_active:
            self._guard.mark(position)
            self._pending.append(snapshot)
        else:
            self._applied = snapshot
            self._unpublished = position

    def _record(self, position: int, kind: int, copy: BufferCopy, streams: dict, values: bytes | None) -> None:
        """Writes a record for a successor. The buffers of one that is made in backward are there before others can need them."""
        if self._memory is None:
            return
        packed = self._packer.pack(streams, values)
        target = self._memory.buffers(position, kind)
        if target.numel():
            target.copy_(copy.flat, non_blocking=True)
        self._memory.write(position, kind, *packed, has_buffers=kind == CONTRIBUTED or not self._buffers.is_on_device)

    def _publish(self) -> None:
        """The device has done the last step, so the buffers of its record are there."""
        if self._unpublished is not None and self._memory is not None and self._buffers.is_on_device:
            self._memory.complete(self._unpublished, DONE)
        self._unpublished = None

    def adopt(self, snapshot: Snapshot) -> None:
        """Stands where the snapshot was taken; what is larger is there already."""
        self.snapshot = snapshot
        self._applied = snapshot
        self.position = snapshot.position
        self.has_state = True
        self.restore_own()

    def restore_own(self) -> None:
        """Undoes a step that was discarded."""
        snapshot = self.snapshot
        self._parts.drop_gradients()
        self._parts.cut_optimizer_states(snapshot.sizes)
        self._parts.small.restore(snapshot.parts)
        self._parts.set_pickled_values(snapshot.values)
        self._state._set_step(snapshot.step)
        self._buffers.restore(snapshot.private.buffers)
        self._set_streams(snapshot.private.streams, snapshot.is_entry)

    def _contribution_of(self, position: int) -> Private | None:
        found = self._contributions.get(position % self._slots)
        return found if found is not None and found.position == position else None

    def private_after(self, position: int, rank: int) -> tuple[Private | None, bytes | None]:
        """Returns what this seat alone had after so many commits, and its values, as far as either is known."""
        own = self.snapshot.private if self.snapshot is not None else None
        for private in (own, self._contribution_of(position)):
            if private is not None and private.position == position:
                return private, self.snapshot.values if private is own else None
        return self._recorded(position, rank) if self._directory is not None else (None, None)

    def _recorded(self, position: int, rank: int) -> tuple[Private | None, bytes | None]:
        """Returns what an earlier process in this seat has written. Where its last buffers are missing, those of backward are taken."""
        records = [seat_memory.read(self._directory, rank, self._slots, position, kind) for kind in (DONE, CONTRIBUTED)]
        known = [record for record in records if record is not None]
        copies = [None if record is None or record[0] is None else self._buffers.from_bytes(record[0]) for record in records]
        if not known or copies == [None, None]:
            return None, None
        _, streams, values = known[0]
        return Private(position, streams, copies[0] or copies[1], is_done=copies[0] is not None), values

    def restore_private(self, private: Private) -> None:
        """Gives this process what its seat had."""
        self._buffers.restore(private.buffers, private_only=not private.is_done)
        self._set_streams(private.streams, is_entry=False)

    def _set_streams(self, streams: dict, is_entry: bool) -> None:
        random_streams.restore(streams)
        # What the training function draws before its first step was drawn by its first entry, too, and does not count again.
        self.unsettled = None if is_entry else streams

    def settle(self) -> None:
        """The first step of a round begins: what was drawn since the function was entered does not count."""
        if self.unsettled is not None:
            random_streams.restore(self.unsettled)
            self.unsettled = None

    def pickled_snapshot(self) -> bytes:
        """Returns the shared part of the snapshot, for ranks that lack it."""
        snapshot = self.snapshot
        return pickle.dumps((snapshot.position, snapshot.step, to_host(snapshot.parts), snapshot.values, snapshot.is_entry))

    def take_over(self, small: bytes, rank: int) -> None:
        """Completes the state of the source, whose tensors are here already, by its small parts and by what this seat has of its own."""
        position, step, parts, values, is_entry = pickle.loads(small)
        self._parts.drop_gradients()
        self._parts.small.restore(parts)
        self._state._set_step(step)
        private, own_values = self.private_after(position, rank)
        self._parts.set_pickled_values(own_values if own_values is not None else values)
        if private is not None:
            self.restore_private(private)
        elif not is_entry:
            random_streams.seed_all("enn", position, rank)
            self.unsettled = random_streams.capture()
            print(
                f"enn: nobody has the random states of rank {rank} after step {position}: they are drawn anew, and the bits are no longer "
                "those of an undisturbed run",
                file=sys.stderr,
                flush=True,
            )
        unsettled = self.unsettled
        self.take_snapshot(position, is_entry)
        self.unsettled = None if is_entry else unsettled
