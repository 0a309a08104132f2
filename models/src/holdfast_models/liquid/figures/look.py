"""What happens inside a network for one sequence, as plain arrays.

B batch, T tokens, K spiking units, U liquid units, S spike steps, G heads of a gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..model.model import LiquidNet, inputs_of

Floats = NDArray[Any]


class Seen(NamedTuple):
    """Of one sequence, one array for each block; gates and fast weights where there are some."""

    train_STK: list[Floats]
    tau_TU: list[Floats]
    opening_TG: list[Floats]
    fast_UK: list[Floats]


@torch.no_grad()
def look(net: LiquidNet, batch: Mapping[str, Tensor]) -> Seen:
    """Run the first sequence of a batch without dropout; the network stays as it was."""
    training, device = net.training, next(net.parameters()).device
    first = {name: value[:1].to(device) for name, value in batch.items()}
    trains: list[Floats] = []
    encoders = [block.get_submodule("encoder") for block in net.blocks]
    hooks = [
        encoder.register_forward_hook(
            lambda _m, _x, y: trains.append(_plain(y[0].train_SBTK[:, 0]))
        )
        for encoder in encoders
    ]
    inside = net.eval()(*inputs_of(net.sizes.task, first)).inside
    net.train(training)
    for hook in hooks:
        hook.remove()
    return Seen(
        trains,
        [_plain(tau_BTU[0]) for tau_BTU in net.time_constants([one.driven_BTU for one in inside])],
        [_plain(one.opening_BTG[0]) for one in inside if one.opening_BTG is not None],
        [_plain(synapse.fast) for synapse in net.synapses],
    )


def _plain(values: Tensor) -> Floats:
    return np.asarray(values.float().cpu())
