from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast_models.liquid.plasticity.synapses import PlasticLinear


class Chain(nn.Module):
    """Plastic layers one after the other; the states of their units are tanh of what they get."""

    def __init__(self, widths: tuple[int, ...] = (4, 6, 3), **options: Any) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            PlasticLinear(inputs, outputs, **options) for inputs, outputs in pairwise(widths)
        )

    @property
    def synapses(self) -> list[PlasticLinear]:
        return [layer for layer in self.layers if isinstance(layer, PlasticLinear)]

    def forward(self, x_BTK: Tensor) -> Tensor:
        for synapse in self.synapses:
            x_BTK = torch.tanh(2 * synapse(x_BTK))
            synapse.observe(x_BTK)
        return x_BTK


class NoHostRead(TorchDispatchMode):
    """Fails on whatever would make the host wait for a device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "a number is read"
        assert func is not torch.ops.aten.nonzero.default, "a shape depends on values"
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def make_chain() -> Callable[..., Chain]:
    return Chain


@pytest.fixture
def no_host_read() -> NoHostRead:
    return NoHostRead()


@pytest.fixture
def spikes_BTK() -> Tensor:
    return (torch.rand(3, 20, 4) < 0.4).float()
