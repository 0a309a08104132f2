"""A replayed pass gives what training reads of one that runs as it is."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from holdfast_models.liquid.course import _plasticity
from holdfast_models.liquid.model.model import LiquidNet, Sizes
from holdfast_models.liquid.model.replaying import _plastic, packed, unpacked
from holdfast_models.liquid.run_settings import LiquidSettings

GATED = {"on": True, "gate": True, "gate_heads": 2}


def _net(mamba: dict[str, Any], plastic: bool) -> LiquidNet:
    torch.manual_seed(0)
    sizes = {"hidden_dim": 16, "liquid_units": 8, "spiking_units": 8, "embedding_dim": 16}
    given: dict[str, Any] = {
        "model": {**sizes, "attention": {"heads": 2}, "mamba": mamba},
        "plasticity": {"on": plastic},
    }
    settings = LiquidSettings(**given)
    net = LiquidNet(settings.model, Sizes("llm", 20, 20), settings.plasticity)
    _plasticity(settings, net)
    return net


@pytest.mark.parametrize("plastic", [False, True])
@pytest.mark.parametrize("mamba", [{}, GATED], ids=["plain", "gated"])
def test_everything_that_training_reads_comes_back(mamba: dict[str, Any], plastic: bool) -> None:
    net, x_BT = _net(mamba, plastic), torch.randint(20, (2, 5))
    out = net(x_BT)
    recorded = [synapse.recorded() for synapse in net.synapses]
    other = copy.deepcopy(net)
    tensors = packed(out.y_BTV, out.inside, _plastic(net))
    y_BTV, inside = unpacked(tensors, len(net.blocks) if mamba else 0, _plastic(other))
    assert y_BTV is out.y_BTV
    assert len(inside) == len(out.inside)
    for own, theirs in zip(inside, out.inside, strict=True):
        flat = tree_leaves(tuple(own)), tree_leaves(tuple(theirs))
        assert all(a is b for a, b in zip(*flat, strict=True))
    again = [synapse.recorded() for synapse in other.synapses]
    for own, theirs in zip(again, recorded, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(own, theirs, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mamba", [{}, GATED], ids=["plain", "gated"])
def test_replayed_gradients_are_those_of_single_operations(mamba: dict[str, Any]) -> None:
    net, x_BT = _net(mamba, plastic=True).cuda(), torch.randint(20, (2, 5), device="cuda")
    net.eval()  # no dropout
    found = []
    for _ in range(5):
        net.zero_grad()
        y_BTV = net(x_BT).y_BTV
        y_BTV.square().mean().backward()
        grads = [one.grad for one in net.parameters() if one.grad is not None]
        found.append((y_BTV.detach(), torch.cat([one.flatten() for one in grads])))
    assert net.graphs.replays == 3, net.graphs.reason
    for own, theirs in zip(found[-1], found[0], strict=True):
        torch.testing.assert_close(own, theirs, atol=1e-6, rtol=1e-4)
