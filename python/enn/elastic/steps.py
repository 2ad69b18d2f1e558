"""What makes a step count: the hooks of the optimizers, and the copies of everything small that a discarded step could change.

A step is open until an optimizer's pre-hook has waited for the device and seen that the round is not over. From there to
`state.step += 1` the step is applied as a whole: nothing interrupts it. At its end the small things are copied; a step that is discarded
later is undone by putting them back. **Invariant:** the optimizers' tensors change only in steps that count.
"""

import pickle
import sys
import threading

import torch

from . import random_streams, seat_memory
from .buffers import BufferCopy, Buffers
from .errors import ElasticError, Interrupted
from .seat_memory import CONTRIBUTED, DONE, SeatMemory

OPEN = "open"
APPLYING = "applying"
APPLIED = "applied"
# How long a rank that has lost a connection waits to hear that the round is over. After that the failure is its own.
VERDICT_SECONDS_MAX = 30


class Snapshot:
    """Everything small after a step. `position` counts commits; `is_entry` says that no step has been done yet."""

    def __init__(self, position: int, step: int, parts: dict, values: bytes, is_entry: bool):
        self.position = position
        self.step = step
        self.parts = parts
        self.values = values
        self.is_entry = is_entry
        self.private: Private | None = None


class Private:
    """What a rank alone has after a step: its random states and its buffers. `is_done` is false for what was copied in backward."""

    def __init__(self, position: int, streams: dict, buffers: BufferCopy | None, is_done: bool):
        self.position = position
        self.streams = streams
        self.buffers = buffers
        self.is_done = is_done


class Steps:
    """The steps of a state in training. `directory` is where the records of seats are; `None` keeps none."""

    def __init__(self, state, control, groups, interruption, directory):
        self._state = state
        self._groups = groups
        self._control = control
        self._interruption = interruption
        self._directory = directory
        self._hooks = []
        self._memory: SeatMemory | None = None
        self._memory_of = None
        self._unpublished: tuple[int, bytes] | None = None
        self._backward_since_applied = False
        self.position = state.step
        self.phase = OPEN
        self.is_active = False
        self.has_state = False
        self.snapshot: Snapshot | None = None
        self.contribution: Private | None = None
        self.unsettled: dict | None = None
        self.stop_check = None
        self._buffers: Buffers | None = None
        self._copies: dict[str, BufferCopy] = {}
        self.sharded = None
        self.is_ready_late = False

    @property
    def _parts(self):
        return self._state._parts

    # Rounds.

    def enter(self, rank: int) -> None:
        """Prepares for the steps of a round in which this process is `rank`."""
        self._buffers = Buffers(self._parts.modules.values(), self._parts.trained())
        if self._copies.keys() != {"even", "odd", "backward"} or self._copies["even"].flat.numel() != self._buffers.bytes:
            self._copies = {name: self._buffers.new_copy() for name in ("even", "odd", "backward")}
        if self._directory is not None and self._memory_of != (rank, self._buffers.bytes):
            self.close()
            self._memory = SeatMemory(self._directory, rank, self._buffers.bytes, self._buffers.device.type == "cuda")
            self._memory_of = (rank, self._buffers.bytes)
        self._register_hooks()
        self.phase = OPEN

    def adopt_parts(self, rank: int) -> None:
        """The state has other modules and optimizers from now on."""
        self._remove_hooks()
        self.enter(rank)

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def leave(self) -> bool:
        """The training function was left; returns whether the state is that of a whole step, once `restore` has undone the open one."""
        self._remove_hooks()
        self.is_active = False
        self._unpublished = None
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
        copy = self._copies["backward"]
        self._buffers.capture(copy)
        streams = random_streams.capture()
        self.contribution = Private(position, streams, copy, is_done=False)
        self._record(position, CONTRIBUTED, copy, {"streams": streams})

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
            self.phase = APPLYING
            return
        if self.sharded is not None:
            # Before other ranks can know that this one has come here.
            self._contribute_once()
        self._begin_to_apply()
        self._contribute_once()
        self._backward_since_applied = False
        self.phase = APPLYING

    def _contribute_once(self) -> None:
        if self.contribution is None or self.contribution.position != self.position + 1:
            self._contribute()

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        if self.is_active and self.phase == APPLYING:
            self.phase = APPLIED

    def _begin_to_apply(self) -> None:
        """Waits until the device has done what was asked, and looks whether that was in a round that is not over."""
        if self.sharded is not None:
            self.sharded.before_step()
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        if self.sharded is not None:
            self.sharded.publish()
        if self._groups.is_broken() and not self._interruption.wait_until_over(VERDICT_SECONDS_MAX):
            raise ElasticError(f"the connection to another rank has ended, and the launcher knows of no failure after {VERDICT_SECONDS_MAX} s")
        self._interruption.hold()
        if self._interruption.is_over() or (self.sharded is not None and not self.sharded.counts(self.position + 1)):
            self._interruption.release()
            raise Interrupted
        self._publish()

    def commit(self, step: int) -> None:
        """The step is done, and counts; the state has done `step` steps."""
        if not self.is_active or threading.current_thread() is not threading.main_thread():
            self._state._set_step(step)
            return
        if self._interruption.is_protected():
            raise ElasticError("a step ends inside state.uninterrupted(), where it could not be discarded")
        if self.phase == OPEN:
            self._begin_to_apply()
        self._state._set_step(step)
        self.take_snapshot(self.position + 1, is_entry=False)
        private = self.snapshot.private
        if self.sharded is not None:
            self.sharded.committed(self.position, private)
        self._state._checkpoints.committed(self._state, self.position, private.streams, private.buffers)
        self.phase = OPEN
        self._control.step = self.position
        self._interruption.release()
        if self.stop_check is not None and self._control.is_stopping:
            self.stop_check(self.position)
        self._interruption.raise_if_over()

    def check_end_of_step(self) -> None:
        """The loop body has ended. Raises `ElasticError` if it has applied a step without counting it."""
        if self.is_active and self.phase == APPLIED:
            raise ElasticError("the optimizer has stepped, but `state.step += 1` (or state.commit()) did not follow in the same pass of the loop")

    # Copies.

    def take_snapshot(self, position: int, is_entry: bool, for_successor: bool = True) -> None:
        """Copies all that is small, in memory and for a successor in this seat."""
        snapshot = Snapshot(position, self._state.step, self._parts.small.capture(), self._parts.pickled_values(), is_entry)
        copy = self._copies["odd" if position % 2 else "even"]
        self._buffers.capture(copy)
        snapshot.private = Private(position, random_streams.capture(), copy, is_done=True)
        self.snapshot = snapshot
        self.position = position
        self.has_state = True
        if for_successor:
            self._record(position, DONE, copy, {"streams": snapshot.private.streams, "values": snapshot.values})

    def _record(self, position: int, kind: int, copy: BufferCopy, rest: dict) -> None:
        if self._memory is None:
            return
        packed = seat_memory.pack(rest)
        target = self._memory.buffers(position, kind)
        if copy.flat.is_cuda and target.numel():
            target.copy_(copy.flat, non_blocking=True)
            if kind == DONE:
                # It is valid once the device has come here.
                self._unpublished = (position, packed)
                return
        elif target.numel():
            target.copy_(copy.flat)
        self._memory.write(position, kind, packed)

    def _publish(self) -> None:
        if self._unpublished is not None:
            position, packed = self._unpublished
            self._unpublished = None
            self._memory.write(position, DONE, packed)

    def restore_own(self) -> None:
        """Undoes a step that was discarded."""
        snapshot = self.snapshot
        self._parts.drop_gradients()
        self._parts.small.restore(snapshot.parts)
        self._parts.set_pickled_values(snapshot.values)
        self._state._set_step(snapshot.step)
        self._buffers.restore(snapshot.private.buffers)
        self._set_streams(snapshot.private.streams, snapshot.is_entry)

    def private_after(self, position: int, rank: int) -> tuple[Private | None, bytes | None]:
        """Returns what this seat alone had after so many commits, and its values, as far as either is known."""
        own = self.snapshot.private if self.snapshot is not None else None
        for private in (own, self.contribution):
            if private is not None and private.position == position:
                return private, self.snapshot.values if private is own else None
        for kind in (DONE, CONTRIBUTED) if self._directory is not None else ():
            found = seat_memory.read(self._directory, rank, position, kind)
            copy = self._buffers.from_bytes(found[0]) if found is not None else None
            if copy is not None:
                rest = seat_memory.unpack(found[1])
                return Private(position, rest["streams"], copy, kind == DONE), rest.get("values")
        return None, None

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
        from .small_parts import to_host

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
