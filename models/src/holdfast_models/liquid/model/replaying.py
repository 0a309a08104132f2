"""A training pass of the network as CUDA graphs, forward and backward; see ``Graphs``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.training import Graphs

from ..plasticity.synapses import PlasticLinear
from .block import Inside

_KEPT = 5  # tensors of ``Inside`` that every block has


def replayed(
    net: Any, graphs: Graphs, x: Tensor, target_BT: Tensor | None = None, smoothing: float = 0.0
) -> tuple[Tensor, tuple[Inside, ...]] | None:
    """Outputs and what happened inside; None where the pass has to run as it is.

    Args:
        net: whose ``run`` is one pass.
        graphs: what was captured of it so far; says why a pass runs as it is.
        x: the input.
        target_BT: of tokens, where their loss is wanted.
        smoothing: of that.
    """
    if torch.compiler.is_compiling() or not x.is_cuda or not torch.is_grad_enabled():
        return None
    kind, path = x.device.type, net.blocks[0].path
    gates = len(net.blocks) if path is not None and path.gate is not None else 0

    def run(x: Tensor, target_BT: Tensor | None = None) -> tuple[Tensor, ...]:
        out = net.run(x, target_BT=target_BT, smoothing=smoothing)
        return packed(out.y_BTV, out.inside, _plastic(net))

    key = (
        net.training, smoothing, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind),
        *(one.data_ptr() for one in net.buffers()),
    )  # fmt: skip
    inputs = [x] if target_BT is None else [x, target_BT]
    found = graphs.run(run, inputs, [net], carries=1 + gates, key=key)
    return None if found is None else unpacked(found, gates, _plastic(net))


def _plastic(net: nn.Module) -> list[PlasticLinear]:
    """Synapses that record what they see."""
    found = [one for one in net.modules() if isinstance(one, PlasticLinear)]
    return [one for one in found if one.record and net.training]


def packed(
    y_BTV: Tensor, inside: Sequence[Inside], synapses: Sequence[PlasticLinear]
) -> tuple[Tensor, ...]:
    """All tensors that training reads, those with gradients first."""
    openings = [one.opening_BTG for one in inside if one.opening_BTG is not None]
    parts = [
        part for one in inside for part in (one.rate_BTK, *one.near, one.liquid_BTU, one.driven_BTU)
    ]
    seen = [part for synapse in synapses for part in synapse.seen if part is not None]
    return y_BTV, *openings, *parts, *seen


def unpacked(
    given: Sequence[Tensor], gates: int, synapses: Sequence[PlasticLinear]
) -> tuple[Tensor, tuple[Inside, ...]]:
    """The same again; ``gates`` of the blocks have one, all or none."""
    blocks = (len(given) - 1 - gates - 2 * len(synapses)) // _KEPT
    parts = iter(given[1 + gates :])
    openings: Sequence[Tensor | None] = given[1 : 1 + gates] if gates else [None] * blocks
    inside = tuple(
        Inside(next(parts), (next(parts), next(parts)), next(parts), next(parts), opening)
        for opening in openings
    )
    for synapse in synapses:
        synapse.seen = (next(parts), next(parts))
    return given[0], inside
