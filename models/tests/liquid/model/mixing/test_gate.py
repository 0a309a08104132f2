from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.liquid.model.mixing.gate import AdaptiveGate, entropy


def sides(width=16, tokens=32):
    torch.manual_seed(1)
    return torch.randn(4, tokens, width), torch.randn(4, tokens, width)


def make(width=16, heads=4) -> Any:
    torch.manual_seed(0)
    return AdaptiveGate(width, heads)


def test_at_the_start_the_gate_is_half_open_and_not_the_same_everywhere():
    _, opening_BTG = make()(*sides())
    assert opening_BTG.shape == (4, 32, 4)
    torch.testing.assert_close(opening_BTG.mean((0, 1)), torch.full((4,), 0.5), rtol=0, atol=0.03)
    assert opening_BTG.std() > 0.005


def test_each_head_mixes_its_own_channels_by_its_opening():
    gate, (l_BTH, m_BTH) = make(), sides()
    y_BTH, opening_BTG = gate(l_BTH, m_BTH)
    for head in range(4):
        g = opening_BTG[..., head, None]
        of = slice(4 * head, 4 * head + 4)
        torch.testing.assert_close(y_BTH[..., of], g * l_BTH[..., of] + (1 - g) * m_BTH[..., of])


def test_temperature_sharpens_and_every_parameter_is_trained():
    gate, (l_BTH, m_BTH) = make(), sides()
    y_BTH, opening_BTG = gate(l_BTH, m_BTH)
    y_BTH.square().sum().backward()
    assert all(of.grad.any() for of in gate.parameters())
    with torch.no_grad():
        gate.log_temperature.fill_(math.log(0.5))
    _, sharper_BTG = gate(l_BTH, m_BTH)
    torch.testing.assert_close(sharper_BTG.logit(), 2 * opening_BTG.logit(), rtol=1e-3, atol=1e-4)


def test_a_token_is_mixed_by_itself_alone():
    """No memory: a changed token changes its own output and no other."""
    gate, (l_BTH, m_BTH) = make(), sides()
    before_BTH, _ = gate(l_BTH, m_BTH)
    m_BTH[:, 9] += 1.0
    after_BTH, _ = gate(l_BTH, m_BTH)
    changed_T = ~torch.isclose(after_BTH, before_BTH).all(-1).all(0)
    assert changed_T.nonzero().flatten().tolist() == [9]


def test_entropy_falls_when_a_head_uses_one_side_only():
    opening_BTG: Any = torch.full((2, 10, 3), 0.5)
    opening_BTG[..., 1] = 0.999
    opening_BTG[:, ::2, 2], opening_BTG[:, 1::2, 2] = 0.001, 0.999  # sharp, yet both sides
    found_G = entropy(opening_BTG.requires_grad_())
    torch.testing.assert_close(found_G[[0, 2]], torch.full((2,), math.log(2.0)))
    assert found_G[1] < 0.01
    found_G[1].backward()
    assert (opening_BTG.grad[..., 1] < 0).all()  # closing it again raises the entropy


def test_autocast_gives_nearly_the_same():
    gate, (l_BTH, m_BTH) = make(), sides()
    with torch.autocast("cpu", torch.bfloat16):
        y_BTH, opening_BTG = gate(l_BTH, m_BTH)
    assert opening_BTG.dtype == torch.float32
    torch.testing.assert_close(y_BTH, gate(l_BTH, m_BTH)[0], rtol=0.05, atol=0.02)


@pytest.mark.parametrize("heads", [0, 3, 32])
def test_heads_must_divide_the_width(heads):
    with pytest.raises(HoldfastError) as refused:
        AdaptiveGate(16, heads)
    assert f"{heads} heads" in str(refused.value) and "\n" not in str(refused.value)
