"""The training function, entered again after each change of the world."""

import atexit
import functools
import gc
import traceback

import torch

from . import agreement, mirror_ahead, records, seat_memory, torch_private, transfer
from .agreement import Claim
from .errors import ElasticError, Interrupted, Stopped
from .messages import Seat
from .steps import VERDICT_SECONDS_MAX, Steps
from .worker import ElasticWorker, current


def run(state):
    """Decorator for the training function, which is entered again after a failure, in all ranks, with the state of the last whole step.

    The function makes what depends on process groups (`DistributedDataParallel`, groups, meshes, compiled functions and CUDA graphs with
    collectives) each time it is entered. A process calls one such function, once. It returns when all ranks have come to its end; if the
    launcher has asked for a stop, `state.is_stopped` is true, and the function's value is `None`.

    Raises `ElasticError` if process groups exist before the function is entered; and what the function raises, if that is not the failure
    of another rank. Where nobody can seat a worker anew, the function is simply called.
    """

    def decorate(function):
        @functools.wraps(function)
        def train(*args, **kwargs):
            worker = current()
            if not isinstance(worker, ElasticWorker):
                if state._parts.modules:
                    state._checkpoints.resume_plainly(state)
                value = function(*args, **kwargs)
                state._checkpoints.finish()
                return value
            return Recovery(worker, state, functools.partial(function, *args, **kwargs)).run()

        return train

    return decorate


class Recovery:
    """One training function of an attached worker, from its first entry to its end."""

    def __init__(self, worker: ElasticWorker, state, function):
        if worker.steps is not None:
            raise ElasticError("a second training function is called: a process has one function under @elastic.run, called once")
        names = torch_private.group_names()
        if names:
            raise ElasticError(
                f"process groups were made outside the training function: {', '.join(names)}. Make groups and meshes inside it: they are "
                "made again after a failure"
            )
        self._worker = worker
        self._control = worker.control
        self._interruption = worker.interruption
        self._groups = worker.groups
        self._state = state
        self._function = function
        self._modes = {id(part): part.training for module in state._parts.modules.values() for part in module.modules()}
        self._steps = Steps(state, worker.control, worker.groups, worker.interruption, worker.seat_directory)
        self._steps.stop_check = self._stop_if_due
        # Whether the state of another rank was being written over the one with which this process has begun.
        self._is_overwritten = False
        state.__dict__["_steps"] = self._steps
        worker.steps = self._steps

    def run(self):
        """Returns the function's value after the round in which all ranks have come to its end."""
        self._steps.tell_parts()
        self._control.participate()
        if self._state._mirror_every and self._worker.promised is not None and self._worker.seat_directory is not None:
            mirror_ahead.begin(self._worker.seat_directory, self._worker.promised)
        with self._groups.watched():
            while True:
                seat = self._worker.take_seat()
                if seat is None:
                    return self._end_early()
                result, error = self._attempt(seat)
                if error is None:
                    self._close()
                    return result
                if isinstance(error, Stopped):
                    return self._end_early()
                self._leave_round(seat, error)

    def _attempt(self, seat: Seat) -> tuple:
        """Enters the function in a round; returns its value, and what has ended it if it did not return."""
        result = None
        error = None
        try:
            try:
                result = self._enter(seat)
            except BaseException as caught:
                error = caught
        except Interrupted as caught:
            # It came while another exception was on its way.
            error = caught
        self._interruption.leave()
        if error is not None and not self._is_of_the_round(error):
            self._control.failed("".join(traceback.format_exception_only(error)).strip())
            self._steps.leave()
            raise error
        if error is not None:
            _release_frames(error)
        return result, error

    def _enter(self, seat: Seat):
        self._interruption.begin(seat.round)
        self._interruption.raise_if_over()
        self._groups.form(seat)
        self._join(seat)
        torch.set_grad_enabled(True)
        for module in self._state._parts.modules.values():
            for part in module.modules():
                part.training = self._modes.get(id(part), part.training)
        self._steps.is_active = True
        if not self._steps.is_ready_late:
            self._control.ready(seat.round, self._steps.position)
        result = self._function()
        self._steps.settle_all()
        self._state._checkpoints.finish()
        self._groups.meet("end", seat.world)
        return result

    def _is_of_the_round(self, error: BaseException) -> bool:
        """Returns whether an exception is the trace of another rank's failure."""
        if isinstance(error, (Interrupted, Stopped)):
            return True
        if not isinstance(error, Exception) or isinstance(error, ElasticError):
            return False
        if self._interruption.is_over():
            return True
        return torch_private.is_error_of_groups(error) and self._interruption.wait_until_over(VERDICT_SECONDS_MAX)

    def _join(self, seat: Seat) -> None:
        """Takes the state with which the round begins."""
        steps = self._steps
        steps.enter(seat.rank)
        self._state._checkpoints.begin_round(seat.rank, seat.round)
        steps.is_ready_late = self._is_given_state_later(seat)
        if steps.is_ready_late:
            self._begin_as_at_first()
            return
        if seat.source_rank is None:
            self._begin_anew(seat)
            return
        is_source = seat.rank == seat.source_rank
        keeps = steps.has_state and steps.position == seat.step
        if is_source and not keeps:
            raise ElasticError(f"rank {seat.rank} is to give the state after step {seat.step}, and has that after {steps.position}")
        if keeps:
            self._held(steps.restore_own)
        else:
            steps.has_state = False
            self._is_overwritten = True
        small = steps.pickled_snapshot() if is_source else None
        small = transfer.share(self._state._parts, small, seat.source_rank, self._groups.device, keeps)
        if small is not None:
            self._held(steps.take_over, small, seat.rank)

    def _is_given_state_later(self, seat: Seat) -> bool:
        """Returns whether `state.sharded()` gives the state. Who has trained knows; the source tells the others."""
        steps = self._steps
        is_later = steps.sharded is not None
        has_trained = is_later or (steps.snapshot is not None and not steps.snapshot.is_entry)
        if seat.source_rank == seat.rank:
            self._groups.store.set("sharded", "1" if is_later else "0")
        elif seat.source_rank is not None and not has_trained:
            return self._groups.store.get("sharded") == b"1"
        return is_later

    def _begin_as_at_first(self) -> None:
        steps = self._steps
        if steps.sharded is not None:
            self._held(steps.sharded.begin_again)
        elif steps.snapshot is not None:
            self._held(steps.restore_own)
        else:
            self._held(steps.take_snapshot, steps.position, True, False)

    def _begin_anew(self, seat: Seat) -> None:
        steps = self._steps
        checkpoints = self._state._checkpoints
        if checkpoints.directory is not None and self._state._parts.modules:
            self._begin_from_newest(seat)
        elif not self._can_begin_anew():
            raise ElasticError(f"round {seat.round}: no rank has the state after a whole step, and this one cannot begin anew: restart the script")
        elif steps.snapshot is None:
            self._held(steps.take_snapshot, steps.position, True)
        else:
            self._held(steps.restore_own)

    def _can_begin_anew(self) -> bool:
        """Returns whether the state is still that with which this process has begun."""
        steps = self._steps
        if steps.snapshot is None:
            return not self._is_overwritten
        return steps.has_state and steps.snapshot.is_entry

    def _begin_from_newest(self, seat: Seat) -> None:
        """Takes the newest checkpoint, or begins anew where nobody has trained and there is none."""
        steps = self._steps
        checkpoints = self._state._checkpoints
        can_begin = self._can_begin_anew()
        reached = max(steps.position, seat_memory.newest(self._worker.seat_directory) if self._worker.seat_directory else 0)
        claim = Claim("", [], steps.position if can_begin else None, reached)
        decision = agreement.agree(self._groups.store, seat.rank, seat.world, claim, checkpoints.newest)
        if decision.kind == agreement.CHECKPOINT:
            record, buffers = checkpoints.load(self._state, decision.checkpoint, seat.rank)
            self._held(records.put_back, steps, record, seat.rank, buffers)
        elif steps.snapshot is None:
            self._held(steps.take_snapshot, steps.position, True)
        else:
            self._held(steps.restore_own)
        agreement.say(decision, self._state.step, seat.rank)

    def _held(self, function, *args) -> None:
        self._interruption.hold()
        try:
            function(*args)
        finally:
            self._interruption.release()

    def _leave_round(self, seat: Seat, error: BaseException) -> None:
        """Leaves the groups of an ended round and says where this rank stands."""
        if torch.cuda.is_initialized():
            # What was enqueued behind the aborted collectives runs to its end.
            torch.cuda.synchronize()
        self._steps.resolve()
        is_whole = self._steps.leave()
        step = self._steps.position
        self._state._checkpoints.leave_round()
        self._groups.forget()
        self._state._parts.drop_gradients()
        if self._steps.sharded is not None:
            step, is_whole = self._steps.sharded.left(is_whole)
        self._control.halted(seat.round, step, is_whole)
        del error
        gc.collect()

    def _stop_if_due(self, position: int) -> None:
        if position >= self._worker.stop_position():
            self._steps.settle_all()
            raise Stopped

    def _end_early(self):
        """The launcher asks for the end, or is gone: the script goes on behind its training function, to save."""
        sharded = self._steps.sharded
        if self._steps.snapshot is not None and self._steps.has_state and (sharded is None or sharded.is_joined):
            self._steps.restore_own()
        self._state.__dict__["_is_stopped"] = True
        self._close()
        return None

    def _close(self) -> None:
        """The training is over: from now on a failure restarts all workers."""
        self._steps.leave()
        self._state._checkpoints.finish()
        if self._steps.sharded is not None:
            self._steps.sharded.close()
        self._steps.close()
        self._control.detach()
        # NCCL's threads must not outlive the interpreter. Until then the script may use the groups.
        atexit.register(self._groups.destroy)


def _release_frames(error: BaseException) -> None:
    """Lets go of the local variables of the function: wrapped modules, graphs and loaders of the ended round."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__context__
