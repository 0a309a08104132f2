"""The kernels on a GPU against plain torch: alone, in the network, and compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast_models.liquid.kernels import check
from holdfast_models.liquid.kernels.choice import faults, using
from holdfast_models.liquid.model.model import LiquidNet, Sizes
from holdfast_models.liquid.settings import ModelSettings, PlasticitySettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DEVICE = torch.device("cuda", 0)
CASES = [
    ("scan", ()),
    ("lif", ("subtract", "fast_sigmoid")),
    ("lif", ("zero", "atan")),
    ("cfc", (64, 128)),
    ("cfc", (128, 128)),
    ("cfc", (256, 128)),
    ("cfc", (48, 0)),
    ("selective", (1024, 16)),
    ("selective", (80, 5)),
    ("attend", (16, 1)),
    ("attend", (6, 0)),
    ("rows", ()),
    ("norm", ()),
]


@pytest.mark.parametrize(("kind", "sizes"), CASES)
@pytest.mark.parametrize("tokens", [1, 64, 200])
def test_values_and_gradients(kind: str, sizes: tuple[Any, ...], tokens: int) -> None:
    torch.manual_seed(0)
    values, gradients = check.compared(kind, DEVICE, sizes, tokens)
    assert values < 1e-4
    assert gradients < 1e-3


def _net(mamba: bool) -> tuple[LiquidNet, Tensor]:
    torch.manual_seed(0)
    exact: dict[str, Any] = {"spikes": {"dropout": 0.0}, "mamba": {"on": mamba}}
    settings = ModelSettings(dropout=0.0, embedding_dropout=0.0, **exact)
    net = LiquidNet(settings, Sizes("llm", 50, 50), PlasticitySettings()).to(DEVICE)
    return net, torch.randint(50, (3, 70), device=DEVICE)


def _pass(net: LiquidNet, run: Any, x_BT: Tensor) -> tuple[Tensor, Tensor]:
    net.zero_grad()
    y_BTV = run(x_BT).y_BTV
    y_BTV.square().mean().backward()
    return y_BTV.detach(), torch.cat([one.grad.flatten() for one in net.parameters()])  # type: ignore[union-attr]


@pytest.mark.parametrize("mamba", [False, True])
@pytest.mark.filterwarnings("ignore")  # of the compiler's own
@pytest.mark.parametrize("compiled", [False, True], ids=["single", "compiled"])
def test_the_network_is_the_same(mamba: bool, compiled: bool) -> None:
    net, x_BT = _net(mamba)
    with using("off"):
        plain = _pass(net, net, x_BT)
    run = torch.compile(net, fullgraph=True, dynamic=False) if compiled else net
    fused = _pass(net, run, x_BT)
    assert not faults()
    for own, theirs in zip(fused, plain, strict=True):
        assert (own - theirs).norm() < 1e-2 * theirs.norm()  # a spike may fall otherwise
