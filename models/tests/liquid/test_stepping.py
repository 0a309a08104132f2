"""Token by token with a state of a fixed size: the same logits, whatever is remembered."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from holdfast_models.liquid import generation
from holdfast_models.liquid.generation import Sampling, generate
from holdfast_models.liquid.model.model import LiquidNet, Sizes
from holdfast_models.liquid.settings import ModelSettings, PlasticitySettings
from holdfast_models.liquid.stepping import Stepper

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"attention": {"heads": 2, "window": 4}},
    "persist": {"spikes": {"persist": True}},
    "cross": {"mamba": {"on": True, "gate": True, "gate_heads": 2, "cross_attention": True,
                        "cross_heads": 2}},
    "rate": {"mamba": {"on": True, "mode": "parallel", "conversion": "rate"}},
}  # fmt: skip


def net_of(**more: Any) -> LiquidNet:
    torch.manual_seed(0)
    sizes = {"hidden_dim": 16, "liquid_units": 8, "spiking_units": 8, "embedding_dim": 16}
    settings = ModelSettings(**{"attention": {"heads": 2}, **sizes, **more})
    return LiquidNet(settings, Sizes("llm", 20, 20), PlasticitySettings()).eval()


@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_logits_are_those_of_one_pass(name: str) -> None:
    net = net_of(**VARIANTS[name])
    tokens_BT = torch.randint(20, (2, 12))
    wanted_BTV = net(tokens_BT).y_BTV
    stepper = Stepper(net, net(tokens_BT[:, :5]).state, 2, 9, captures=False)
    shapes = [one.shape for one in tree_leaves(stepper.state)]
    for place in range(5, 12):
        logits_BV = stepper(tokens_BT[:, place : place + 1])
        torch.testing.assert_close(logits_BV, wanted_BTV[:, place], atol=1e-5, rtol=1e-4)
    assert shapes == [one.shape for one in tree_leaves(stepper.state)]


def test_rows_that_end_leave_the_others_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that stops changes how many there are, and the stepper with them."""
    net, made = net_of(), []

    def stepper(net: LiquidNet, state: Any, rows: int, tokens: int) -> Stepper:
        made.append(rows)
        return Stepper(net, state, rows, tokens, captures=False)

    prompts, how = [[1, 2, 3], [4], [5, 6]], Sampling(seed=1)
    wanted = list(generate(net, prompts, 12, how, stop=7))
    monkeypatch.setattr(generation, "_stepper", stepper)
    monkeypatch.setattr(generation, "_graphs_on", lambda device: True)
    assert list(generate(net, prompts, 12, how, stop=7)) == wanted
    assert len(made) > 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_a_captured_graph_writes_the_same(name: str) -> None:
    net = net_of(**VARIANTS[name]).cuda()
    tokens_BT = torch.randint(20, (2, 12), device="cuda")
    wanted_BTV = net(tokens_BT).y_BTV
    stepper = Stepper(net, net(tokens_BT[:, :5]).state, 2, 9, captures=True)
    for place in range(5, 12):
        logits_BV = stepper(tokens_BT[:, place : place + 1])
        torch.testing.assert_close(logits_BV, wanted_BTV[:, place], atol=1e-3, rtol=1e-3)
