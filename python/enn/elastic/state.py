"""The state of a training: what is put back when a rank dies."""

import math
import os
import pickle
import sys
from contextlib import contextmanager
from pathlib import Path

import torch

from . import sharded
from .checkpoints import Checkpoints
from .errors import ElasticError
from .guard import Guard, check_fused, is_fused
from .sampler import Sampler
from .small_parts import SmallParts


class State:
    """Everything that training changes, by name.

    - modules (`torch.nn.Module`): parameters and the buffers of their `state_dict`;
    - optimizers: hyperparameters and state, whatever its dtype;
    - schedulers, samplers, `GradScaler` and all else that has `state_dict` and `load_state_dict`;
    - values that can be pickled: `State(..., best=0.0)`, then `state.best = 0.5`. Keep them small: they are copied after each step.

    After a failure all ranks stand after the last step that was applied on any of them, to the bit, random states (Python, NumPy, torch)
    included. Values and buffers stay those of the rank where its process lived, or where its seat has a record of them.

    `state.step` counts the steps that are done. `state.step += 1` is the last statement of a step: what the step changes (scheduler,
    averaged weights, values) stands before it, and what stands behind it and before the next optimizer step may be done again.

    `run_ahead` is for steps that Python limits, as those of many small kernels. Without it each optimizer step waits until the device has
    done the backward pass, and looks whether a rank has died. With it Python goes on, up to two steps ahead of the device, and the device
    skips the steps behind a failure. That takes optimizers with `fused=True`. What else a step changes is to be registered: buffers,
    schedulers, scalers and values are put back; where a registered module is none that an optimizer trains (averaged weights), or parameters
    are changed after the optimizer's step, each step waits all the same, and a line says so. A change through `parameter.data` is not seen.
    On the CPU, `run_ahead` changes nothing.

    Raises `ElasticError` for a value that cannot be copied, and for `run_ahead` with an optimizer that is not fused.
    """

    def __init__(self, run_ahead: bool = False, **parts):
        for name in parts:
            if name.startswith("_") or hasattr(State, name):
                raise ElasticError(f"State({name}=…): this name is taken, choose another one")
        self.__dict__["_parts"] = Parts(parts)
        self.__dict__["_guard"] = None
        self.__dict__["_run_ahead"] = False
        self._set_guard(run_ahead)
        self.__dict__["_step"] = 0
        self.__dict__["_steps"] = None
        self.__dict__["_is_stopped"] = False
        self.__dict__["_mirror_every"] = 0
        self.__dict__["_checkpoints"] = Checkpoints()

    def _set_guard(self, run_ahead: bool) -> None:
        trained = self._parts.trained_parameters()
        if run_ahead:
            check_fused(self._parts.optimizers)
            if not trained:
                raise ElasticError("State(run_ahead=True) has no optimizer: sharded models do not run ahead, leave out run_ahead")
        if not any(map(is_fused, self._parts.optimizers.values())) or not _runs_ahead(trained[0].device):
            return
        self.__dict__["_guard"] = Guard(trained[0].device)
        self.__dict__["_run_ahead"] = run_ahead
        for name in self._parts.untrained_modules():
            self._wait_from_now(f"state.{name} has parameters, and no optimizer trains them")

    def _wait_from_now(self, reason: str) -> None:
        if self._run_ahead:
            print(f"enn: run_ahead has no effect, each step waits for the device: {reason}", file=sys.stderr, flush=True)
        self.__dict__["_run_ahead"] = False

    @property
    def step(self) -> int:
        """Number of steps that are done. To increase it ends a step."""
        return self._step

    @step.setter
    def step(self, value: int) -> None:
        if self._steps is None:
            self._set_step(value)
            self._checkpoints.committed_plainly(self)
        else:
            self._steps.commit(value)

    def _set_parts(self, parts: dict, sharded: bool = False) -> None:
        self.__dict__["_parts"] = Parts(parts, sharded)
        if self._steps is not None:
            self._steps.tell_parts()

    def _set_step(self, value: int) -> None:
        self.__dict__["_step"] = value

    @property
    def is_stopped(self) -> bool:
        """Whether the launcher has asked for the end: the training function was left, and the script saves and ends."""
        return self._is_stopped

    def commit(self) -> None:
        """Ends a step of a loop that has no optimizer, or a change between two steps (of the epoch, say). `state.step` stays as it is.

        All ranks have to call it at the same place.
        """
        if self._steps is not None:
            self._steps.commit(self._step)

    def sharded(self, **parts) -> None:
        """Adds modules and optimizers whose parameters are sharded (`fully_shard`, tensor parallelism), and all that refers to them.

        Called inside the training function, once each time it is entered, before the first step: meshes end with a round, so what is
        built on them is built again. Then `state.NAME` is the part. Gives the parts the state with which all ranks go on, which is the
        newest of which each part is held by somebody:

        - by a rank that lives: all parts are, where a mesh also replicates (HSDP); nothing is repeated then;
        - in mirrored memory (`mirror`): fewer than `every` steps are repeated, or twice as many if a rank died while a mirror was written;
        - in a checkpoint (`checkpoint`); else the training begins anew.

        One rank prints which it was, and how many steps are repeated. Schedulers, samplers and values may be in `State(…)` or here;
        modules and optimizers belong here, all of them.

        Raises `ElasticError` if no parameter is sharded, or if `State` was given modules or optimizers.
        """
        sharded.attach(self, parts)

    def mirror(self, every: int) -> None:
        """Keeps each rank's part of the sharded state also in the host memory of its node, where it survives the process.

        A copy is made after each `every` steps, at least 2; on a GPU beside the training, by a stream of its own. Host memory: twice the
        part of each rank. Called before the training function.
        """
        if every < 2:
            raise ElasticError(f"state.mirror(every={every}): expected 2 or more, since a copy is made while the next step is done")
        self.__dict__["_mirror_every"] = every

    def checkpoint(self, every: int, dir: str | os.PathLike) -> None:
        """Writes a checkpoint after each `every` steps into a folder that all nodes share, and starts from the newest one that is there.

        It is written in a thread, from a copy in host memory, by torch.distributed.checkpoint, which can read it: `dir/step-NUMBER-ROUND`
        holds the `state_dict` of each module and optimizer under its name. The newest two are kept; one that was not finished does not
        count. Called before the training function.
        """
        if every < 1:
            raise ElasticError(f"state.checkpoint(every={every}): expected a number of steps, 1 or more")
        self.__dict__["_checkpoints"] = Checkpoints(Path(dir), every)

    @contextmanager
    def uninterrupted(self):
        """Context in which nothing is raised from outside, for writing a checkpoint. Raises `Interrupted` at its begin or at its end.

        Collectives inside fail all the same when a rank has died. Steps of the optimizer are not allowed inside.
        """
        if self._steps is None or not self._steps.is_active:
            yield
            return
        interruption = self._steps._interruption
        interruption.raise_if_over()
        self._steps.settle_all()
        interruption.hold(protected=True)
        try:
            yield
        finally:
            interruption.release(protected=True)
        interruption.raise_if_over()

    def __getattr__(self, name: str):
        # Called for names that are no attributes of the instance or the class.
        parts = self.__dict__.get("_parts")
        if parts is not None and name in parts.all:
            return parts.all[name]
        raise AttributeError(f"the state has no {name!r}; it has {', '.join(parts.all) if parts else 'nothing'}")

    def __setattr__(self, name: str, value) -> None:
        if name == "step":
            State.step.fset(self, value)
        elif name in self._parts.values:
            self._parts.all[name] = value
        elif name in self._parts.all:
            raise ElasticError(f"state.{name} is registered, and cannot be replaced by another object")
        else:
            raise ElasticError(f"state.{name} is not part of the state: give it to State({name}=…) first")


class Parts:
    """The registered objects, by what is done with them. `all` has each of them; `values` has the names of plain values."""

    def __init__(self, parts: dict, may_be_sharded: bool = False):
        self.all = dict(parts)
        self.modules = {}
        self.optimizers = {}
        stateful = {}
        scalers = {}
        self.values = set()
        for name, part in parts.items():
            if isinstance(part, torch.nn.Module):
                self.modules[name] = _checked(name, part, may_be_sharded)
            elif isinstance(part, torch.optim.Optimizer):
                self.optimizers[name] = part
            elif isinstance(part, torch.amp.GradScaler):
                scalers[name] = part
            elif hasattr(part, "state_dict") and hasattr(part, "load_state_dict"):
                stateful[name] = part
            else:
                self.values.add(name)
        self.has_scalers = bool(scalers)
        # Into how many equal parts a step can be cut, for all samplers; 0 where there is none.
        self.batch_parts = math.gcd(*(part.parts for part in parts.values() if isinstance(part, Sampler)))
        self.small = SmallParts(self.optimizers, stateful, scalers)
        # What cannot be pickled is found now, and not in the first step.
        self.small.capture()
        self.pickled_values()

    def trained(self) -> set[int]:
        """Returns the identities of all parameters that an optimizer changes."""
        return {id(parameter) for parameter in self.trained_parameters()}

    def trained_parameters(self) -> list[torch.Tensor]:
        """Returns all parameters that an optimizer changes."""
        groups = [group for optimizer in self.optimizers.values() for group in optimizer.param_groups]
        return [parameter for group in groups for parameter in group["params"]]

    def untrained_modules(self) -> list[str]:
        """Returns the names of modules with parameters none of which an optimizer changes, such as averaged weights."""
        trained = self.trained()
        found = {name: [id(parameter) in trained for parameter in module.parameters()] for name, module in self.modules.items()}
        return [name for name, trains in found.items() if trains and not any(trains)]

    def cut_optimizer_states(self, sizes: dict[str, int]) -> None:
        """Drops the states that a discarded step was the first to make: of each optimizer, those behind the first `size`."""
        for name, optimizer in self.optimizers.items():
            for parameter in list(optimizer.state)[sizes.get(name, len(optimizer.state)) :]:
                del optimizer.state[parameter]

    def drop_scales(self) -> None:
        """Drops what a `GradScaler` has left in fused optimizers whose step was not done."""
        if self.has_scalers:
            for optimizer in self.optimizers.values():
                vars(optimizer).pop("grad_scale", None)
                vars(optimizer).pop("found_inf", None)

    def drop_gradients(self) -> None:
        """Drops gradients of a step that was discarded."""
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        for module in self.modules.values():
            module.zero_grad(set_to_none=True)

    def pickled_values(self) -> bytes:
        """Returns a copy of the plain values. Raises `ElasticError` if one cannot be pickled."""
        try:
            return pickle.dumps({name: self.all[name] for name in self.values}, protocol=pickle.HIGHEST_PROTOCOL)
        except Exception:
            for name in sorted(self.values):
                _check_value(name, self.all[name])
            raise

    def set_pickled_values(self, data: bytes) -> None:
        """Puts such a copy back."""
        self.all.update(pickle.loads(data))


def _runs_ahead(device: torch.device) -> bool:
    return device.type == "cuda"


def _checked(name: str, module: torch.nn.Module, may_be_sharded: bool) -> torch.nn.Module:
    """Returns the module, if it is one whose state a survivor has as a whole."""
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        raise ElasticError(f"State({name}=…): give the module itself, and wrap it in DistributedDataParallel inside the training function")
    if not may_be_sharded and any(type(parameter).__name__ == "DTensor" for parameter in module.parameters()):
        raise ElasticError(f"State({name}=…): its parameters are sharded: give it to state.sharded(…) inside the training function")
    return module


def _check_value(name: str, value: object) -> None:
    try:
        pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise ElasticError(f"State({name}=…) is neither a module, an optimizer nor has it a state_dict, and cannot be pickled: {error}") from None
