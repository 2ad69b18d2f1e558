"""The part of a sharded state that one rank has: its local tensors in one order, and the name of the part."""

import hashlib

import torch

from . import torch_private, transfer
from .buffers import BufferCopy, Buffers
from .errors import ElasticError
from .records import Record


def local_tensors(parts) -> list[torch.Tensor]:
    """Returns the local tensors of all parameters, each once, and of the optimizers' states."""
    tensors = [*_parameters(parts).values(), *transfer.optimizer_tensors(parts.optimizers)]
    return [torch_private.local_part(tensor).detach() for tensor in tensors]


def _parameters(parts) -> dict[str, torch.Tensor]:
    found = {}
    seen = set()
    for name, module in parts.modules.items():
        for key, parameter in module.named_parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                found[f"{name}.{key}"] = parameter
    return found


def signature(parts) -> str:
    """Returns a name (32 characters) of the part of the state that this rank has: equal for ranks that have the same part.

    Raises `ElasticError` if no parameter is sharded.
    """
    lines = []
    is_sharded = False
    for name, parameter in _parameters(parts).items():
        local = torch_private.local_part(parameter)
        place = None
        if local is not parameter:
            mesh = parameter.device_mesh
            coordinate = mesh.get_coordinate()
            dimensions = [index for index, placement in enumerate(parameter.placements) if not placement.is_replicate()]
            place = (mesh.mesh.tolist(), repr(parameter.placements), [coordinate[index] for index in dimensions])
            is_sharded = True
        lines.append((name, str(parameter.dtype), tuple(parameter.shape), tuple(local.shape), place))
    if not is_sharded:
        raise ElasticError(
            "state.sharded(…): no parameter of these modules is sharded. Call fully_shard() before, or give modules that each rank has as a "
            "whole to State(…)"
        )
    return hashlib.blake2b(repr(lines).encode(), digest_size=16).hexdigest()


def copy_in(parts, buffers: Buffers, record: Record, flat: torch.Tensor) -> BufferCopy:
    """Fills parameters and optimizers' states from a copy in one piece (uint8); returns the copy of the buffers that ends it."""
    transfer.fit_optimizers(parts.optimizers, record.layout)
    copy = buffers.new_copy()
    targets = [*local_tensors(parts), copy.flat]
    if transfer.total_bytes(targets) != flat.numel():
        raise ElasticError(
            f"a copy of this rank's part of the state has {flat.numel()} bytes, and the modules and optimizers given to state.sharded() "
            f"have {transfer.total_bytes(targets)}: all rounds must build the same ones"
        )
    torch_private.copy_tensors(targets, transfer.parts_of(flat, targets))
    if copy.flat.is_cuda or any(target.is_cuda for target in targets):
        torch.cuda.current_stream().synchronize()
    return copy
