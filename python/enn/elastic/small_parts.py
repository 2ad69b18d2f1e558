"""The small, shared parts of a state: hyperparameters of optimizers, schedulers, samplers, the scale of a `GradScaler`, values.

They are the same on all ranks, or the script does not mind which rank's they are.
"""

import pickle

import torch

from . import torch_private
from .errors import ElasticError


class SmallParts:
    """Copies them and puts them back. A copy is not changed by later steps and can be pickled after `to_host`."""

    def __init__(self, optimizers: dict, stateful: dict, scalers: dict):
        self._optimizers = optimizers
        self._stateful = stateful
        self._scalers = scalers

    def capture(self) -> dict:
        """Returns a copy, without waiting for the device."""
        return {
            "optimizers": {name: _groups_of(optimizer) for name, optimizer in self._optimizers.items()},
            "stateful": {name: _pickled(name, part.state_dict()) for name, part in self._stateful.items()},
            "scalers": {name: _scaler_copy(scaler) for name, scaler in self._scalers.items()},
        }

    def restore(self, copy: dict) -> None:
        """Puts a copy back."""
        for name, groups in copy["optimizers"].items():
            _set_groups(self._optimizers[name], groups)
        for name, data in copy["stateful"].items():
            self._stateful[name].load_state_dict(pickle.loads(data))
        for name, tensors in copy["scalers"].items():
            device = torch.device(self._scalers[name]._device)
            moved = {key: None if one is None else one.to(device) for key, one in tensors.items()}
            torch_private.set_scaler_tensors(self._scalers[name], moved)


def to_host(copy: dict) -> dict:
    """Returns a copy whose tensors are on the CPU."""
    if isinstance(copy, dict):
        return {key: to_host(value) for key, value in copy.items()}
    if isinstance(copy, list):
        return [to_host(value) for value in copy]
    return copy.cpu() if isinstance(copy, torch.Tensor) else copy


def _groups_of(optimizer: torch.optim.Optimizer) -> list[dict]:
    groups = []
    for group in optimizer.param_groups:
        copy = dict(group)
        del copy["params"]
        groups.append({key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in copy.items()})
    return groups


def _set_groups(optimizer: torch.optim.Optimizer, groups: list[dict]) -> None:
    for group, values in zip(optimizer.param_groups, groups, strict=True):
        for key, value in values.items():
            present = group.get(key)
            if isinstance(value, torch.Tensor) and isinstance(present, torch.Tensor):
                present.copy_(value)
            else:
                group[key] = value


def _pickled(name: str, value: object) -> bytes:
    try:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise ElasticError(f"state.{name} cannot be pickled, so it cannot be part of an elastic state: {error}") from None


def _scaler_copy(scaler) -> dict:
    return {key: None if one is None else one.clone() for key, one in torch_private.scaler_tensors(scaler).items()}
