"""The state of one rank for those that lack it, by broadcast in large pieces."""

import ctypes
import pickle

import torch
import torch.distributed as dist

from .errors import ElasticError

PIECE_BYTES = 64 << 20
_ALIGNMENT_BYTES = 16


def broadcast_bytes(data: bytes | None, source: int, device: torch.device) -> bytes:
    """Returns what the rank `source` gives; `data` of other ranks is not read."""
    length = torch.tensor([len(data) if data is not None else 0], dtype=torch.int64, device=device)
    dist.broadcast(length, source)
    if data is not None:
        content = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
    else:
        content = torch.empty(int(length.item()), dtype=torch.uint8, device=device)
    dist.broadcast(content, source)
    if data is not None:
        return data
    received = content.cpu()
    return ctypes.string_at(received.data_ptr(), received.numel())


def broadcast_tensors(tensors: list[torch.Tensor], source: int, device: torch.device, keeps: bool) -> None:
    """Gives all ranks the values that `tensors` have on the rank `source`.

    The lists are alike in order, shapes and dtypes. `device` is one that the default group sends from. A rank that `keeps` its values takes
    part and does not change them.
    """
    is_source = dist.get_rank() == source
    for piece in pieces(tensors):
        total = total_bytes(piece)
        flat = torch.empty(total, dtype=torch.uint8, device=device)
        parts = parts_of(flat, piece)
        if is_source:
            for part, tensor in zip(parts, piece):
                part.copy_(tensor.detach())
        dist.broadcast(flat, source)
        if not is_source and not keeps:
            for part, tensor in zip(parts, piece):
                tensor.detach().copy_(part)


def pieces(tensors: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Returns the tensors in groups, none larger than `PIECE_BYTES` unless it is a single tensor."""
    groups = []
    room = 0
    for tensor in tensors:
        size = padded_bytes(tensor)
        if not groups or size > room:
            groups.append([])
            room = PIECE_BYTES
        groups[-1].append(tensor)
        room -= size
    return groups


def padded_bytes(tensor: torch.Tensor) -> int:
    """Returns the room of a tensor in a copy of several in one piece."""
    size = tensor.numel() * tensor.element_size()
    return -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def total_bytes(tensors: list[torch.Tensor]) -> int:
    """Returns the size of a copy of tensors in one piece."""
    return sum(padded_bytes(tensor) for tensor in tensors)


def parts_of(flat: torch.Tensor, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the parts of a copy in one piece (uint8), with dtypes and shapes of `tensors`."""
    parts = []
    begin = 0
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        parts.append(flat[begin : begin + size].view(tensor.dtype).view(tensor.shape))
        begin += padded_bytes(tensor)
    return parts


def module_tensors(modules: dict) -> dict[str, torch.Tensor]:
    """Returns parameters and buffers of the `state_dict` of all modules by name, each tensor once."""
    found = {}
    seen = set()
    for name, module in modules.items():
        named = [*module.named_parameters()]
        buffers = dict(module.named_buffers())
        named += [(key, buffers[key]) for key in module.state_dict() if key in buffers]
        for key, tensor in named:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                found[f"{name}.{key}"] = tensor
    return found


def described(tensors: dict[str, torch.Tensor]) -> dict[str, tuple]:
    """Returns dtype and shape of each tensor."""
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}


def check_alike(mine: dict[str, torch.Tensor], theirs: dict[str, tuple]) -> None:
    """Raises `ElasticError` if the modules of this process are not those of the source."""
    own = described(mine)
    for name in [*theirs, *own]:
        if own.get(name) != theirs.get(name):
            raise ElasticError(
                f"state.{name} is {own.get(name, 'absent')} in this process and {theirs.get(name, 'absent')} in the rank that has the "
                "state: all processes must build the same modules"
            )


def optimizer_layout(optimizers: dict) -> dict[str, list]:
    """Returns, for each optimizer and each of its parameters in order, what its state holds: dtype, shape and place of tensors; values."""
    return {name: [_layout_of(optimizer.state.get(one, {})) for one in _parameters(optimizer)] for name, optimizer in optimizers.items()}


def _layout_of(state: dict) -> dict:
    return {
        key: ("tensor", value.dtype, tuple(value.shape), value.device.type == "cpu") if isinstance(value, torch.Tensor) else ("value", value)
        for key, value in state.items()
    }


def fit_optimizers(optimizers: dict, layout: dict[str, list]) -> None:
    """Gives the optimizers of this process state tensors as the layout says; those that fit stay."""
    for name, optimizer in optimizers.items():
        for parameter, wanted in zip(_parameters(optimizer), layout[name], strict=True):
            if not wanted:
                optimizer.state.pop(parameter, None)
                continue
            present = optimizer.state.get(parameter, {})
            optimizer.state[parameter] = {key: _fitting(present.get(key), what, parameter) for key, what in wanted.items()}


def _fitting(present: object, what: tuple, parameter: torch.Tensor) -> object:
    if what[0] == "value":
        return what[1]
    _, dtype, shape, on_cpu = what
    device = torch.device("cpu") if on_cpu else parameter.device
    if isinstance(present, torch.Tensor) and (present.dtype, tuple(present.shape), present.device) == (dtype, shape, device):
        return present
    if shape == tuple(parameter.shape) and device == parameter.device:
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    return torch.empty(shape, dtype=dtype, device=device)


def optimizer_tensors(optimizers: dict) -> list[torch.Tensor]:
    """Returns the tensors of the optimizers' states in the order of `optimizer_layout`."""
    states = [optimizer.state.get(one, {}) for optimizer in optimizers.values() for one in _parameters(optimizer)]
    return [value for state in states for value in state.values() if isinstance(value, torch.Tensor)]


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def share(parts, small: bytes | None, source: int, device: torch.device, keeps: bool) -> bytes | None:
    """Gives all ranks the tensors of the rank `source`; returns what it says of the small parts, or `None` if this rank keeps its own.

    `small` is given by the source alone. Raises `ElasticError` if the modules are not alike.
    """
    modules = module_tensors(parts.modules)
    data = None
    if small is not None:
        data = pickle.dumps((described(modules), optimizer_layout(parts.optimizers), small))
    theirs, layout, small_of_source = pickle.loads(broadcast_bytes(data, source, device))
    check_alike(modules, theirs)
    if keeps:
        _check_optimizers(parts.optimizers, layout)
    else:
        fit_optimizers(parts.optimizers, layout)
    broadcast_tensors([*modules.values(), *optimizer_tensors(parts.optimizers)], source, device, keeps)
    return None if keeps else small_of_source


def _check_optimizers(optimizers: dict, layout: dict[str, list]) -> None:
    """Raises `ElasticError` if the optimizers of a rank that keeps its state are not those of the source."""
    if _shapes(optimizer_layout(optimizers)) != _shapes(layout):
        raise ElasticError("the optimizers' states of two ranks at the same step differ in shape: all ranks must build the same optimizers")


def _shapes(layout: dict[str, list]) -> dict[str, list]:
    return {name: [{key: what[1:3] for key, what in state.items() if what[0] == "tensor"} for state in states] for name, states in layout.items()}
