"""The kernels of the fused loop as one set of functions: in Triton, or in plain torch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import reference

__all__ = ["Ops", "has_triton", "kernels", "ops_for", "references"]


class Ops(NamedTuple):
    """Functions that write into the tensors they are given; see ``reference``."""

    noise: Callable[..., Tensor]
    neuron_forward: Callable[..., None]
    neuron_backward: Callable[..., None]
    gates_forward: Callable[..., None]
    gates_backward: Callable[..., None]
    heads_forward: Callable[..., None]
    heads_backward: Callable[..., None]


@functools.cache
def references() -> Ops:
    """In plain torch, for any device."""
    return _gathered(reference, reference, reference, reference)


@functools.cache
def kernels() -> Ops:
    """In Triton, for a GPU; raises ``ImportError`` where it is not installed."""
    from . import gate_kernels, head_kernels, neuron_kernels, noise_kernels

    return _gathered(noise_kernels, neuron_kernels, gate_kernels, head_kernels)


@functools.cache
def has_triton(device: torch.device) -> bool:
    """Whether the kernels can run there: a GPU of capability 8 or more, and triton installed."""
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    try:
        kernels()
        return torch.cuda.get_device_capability(device)[0] >= 8
    except Exception:  # a broken installation is none
        return False


def ops_for(device: torch.device) -> Ops:
    """The kernels where they can run, the plain forms elsewhere."""
    return kernels() if has_triton(device) else references()


def _gathered(noise: Any, neuron: Any, gates: Any, heads: Any) -> Ops:
    return Ops(
        noise=noise.noise,
        neuron_forward=neuron.neuron_forward,
        neuron_backward=neuron.neuron_backward,
        gates_forward=gates.gates_forward,
        gates_backward=gates.gates_backward,
        heads_forward=heads.heads_forward,
        heads_backward=heads.heads_backward,
    )
