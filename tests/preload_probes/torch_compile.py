"""Compiles a small function and a module."""

import torch

import seen


@torch.compile
def small(one, other):
    """Something to fuse."""
    return (one.sin() + other.cos()).sum()


torch.manual_seed(3)
one, other = torch.randn(64), torch.randn(64)
seen.show("compiled", round(small(one, other).item(), 4) == round((one.sin() + other.cos()).sum().item(), 4))
model = torch.compile(torch.nn.Linear(4, 4))
model(torch.ones(2, 4)).sum().backward()
seen.show("gradient", [parameter.grad.sum().item() for parameter in model.parameters()])
