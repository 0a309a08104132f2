"""Token by token with a state of a fixed size: the same logits, whatever is remembered."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

from holdfast_models.liquid import generation
from holdfast_models.liquid.generation import Sampling, choose, generate
from holdfast_models.liquid.model.model import LiquidNet, Sizes
from holdfast_models.liquid.settings import ModelSettings, PlasticitySettings
from holdfast_models.liquid.stepping import NO_TOKEN, Stepper, Writer

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
    step = Stepper(net, net(tokens_BT[:, :5]).state, 7)
    places = [(one.shape, one.data_ptr()) for one in tree_leaves(step.state)]
    for place in range(5, 12):
        logits_BV = step(tokens_BT[:, place : place + 1])
        torch.testing.assert_close(logits_BV, wanted_BTV[:, place], atol=1e-5, rtol=1e-4)
    assert places == [(one.shape, one.data_ptr()) for one in tree_leaves(step.state)]


@pytest.mark.parametrize("how", [Sampling(seed=1), Sampling(temperature=0, penalty=1.3)])
def test_blocks_write_what_single_tokens_do(monkeypatch: pytest.MonkeyPatch, how: Sampling) -> None:
    """Rows that still read, and rows that end inside a block, leave the others as they are."""
    net, made = net_of(), []

    class Counted(Writer):
        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            made.append(self)

    prompts = [[1, 2, 3, 4, 5, 6], [4], [5, 6]]
    alone = list(generate(net, prompts, 30, how, stop=7))
    monkeypatch.setattr(generation, "Writer", Counted)
    monkeypatch.setattr(generation, "_in_blocks", lambda device: True)
    monkeypatch.setattr(generation, "_BLOCK", 8)
    assert list(generate(net, prompts, 30, how, stop=7)) == alone
    ended = {row for row, _ in alone if sum(row == other for other, _ in alone) < 30}
    assert ended and len(made) > 1, "a row stopped early, and another writer went on"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", VARIANTS)
@torch.no_grad()
def test_a_captured_graph_writes_the_same(name: str) -> None:
    net = net_of(**VARIANTS[name]).cuda()
    tokens_BT = torch.randint(20, (2, 5), device="cuda")
    greedy = functools.partial(choose, how=Sampling(temperature=0))
    blocks = []
    for captures in (False, True):
        step = Stepper(net, net(tokens_BT[:, :4]).state, 24)
        how: dict[str, Any] = {"block": 8, "reads": True, "captures": captures}
        writer = Writer(step, greedy, tokens_BT[:, 4], None, **how)
        given_NB = torch.full((8, 2), NO_TOKEN)
        given_NB[:3, 1] = 5
        first = writer(torch.zeros(8, 2), given_NB)
        blocks.append(first + writer(torch.zeros(5, 2), torch.full((5, 2), NO_TOKEN)))
    assert blocks[0] == blocks[1]
    assert [row[1] for row in blocks[0][:3]] == [5, 5, 5]
    logits_V = net(torch.cat([tokens_BT[:1], torch.tensor([[b[0] for b in blocks[0]]]).cuda()], 1))
    likeliest = logits_V.y_BTV[0, 4:-1].argmax(-1).tolist()
    assert likeliest == [row[0] for row in blocks[0]]
