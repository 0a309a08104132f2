from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast import HoldfastError
from holdfast_models.liquid.model.mixing.cross_attention import CrossAttention

TIGHT: Any = {"rtol": 1e-9, "atol": 1e-11}
WINDOWS = [None, 1, 4, 50]


def make(window=None):
    torch.manual_seed(0)
    return CrossAttention(units=6, width=8, heads=3, window=window).double()


def sides(tokens=17):
    torch.manual_seed(1)
    return (
        torch.randn(2, tokens, 6, dtype=torch.float64),
        torch.randn(2, tokens, 8, dtype=torch.float64),
    )


def plain(direction, asking, asked, heads=3, window=None):
    """Softmax over the tokens that may be seen, one query after another."""
    query = direction.query(asking).unflatten(-1, (heads, -1))
    key, value = (
        of.unflatten(-1, (heads, -1)) for of in direction.key_value(asked).chunk(2, dim=-1)
    )
    rows = []
    for t in range(asking.shape[1]):
        seen = slice(0 if window is None else max(0, t - window + 1), t + 1)
        score = torch.einsum("bad,bsad->bas", query[:, t], key[:, seen]) * key.shape[-1] ** -0.5
        rows.append(torch.einsum("bas,bsad->bad", functional.softmax(score, -1), value[:, seen]))
    return asking + direction.out(torch.stack(rows, 1).flatten(2))


@pytest.mark.parametrize("window", WINDOWS)
def test_each_side_attends_to_the_other_over_time(window):
    cross, (l_BTU, m_BTH) = make(window), sides()
    to_liquid_BTU, to_mamba_BTH, _ = cross(l_BTU, m_BTH)
    expected_BTU = plain(cross.liquid_asks, l_BTU, m_BTH, window=window)
    expected_BTH = plain(cross.mamba_asks, m_BTH, l_BTU, window=window)
    torch.testing.assert_close(to_liquid_BTU, expected_BTU, **TIGHT)
    torch.testing.assert_close(to_mamba_BTH, expected_BTH, **TIGHT)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("cuts", [[6, 11], [2, 1, 14], [1] * 17])
def test_the_cache_equals_the_full_pass(window, cuts):
    cross, (l_BTU, m_BTH) = make(window), sides()
    *whole, last = cross(l_BTU, m_BTH)
    state: Any = None
    outputs = []
    for l_part, m_part in zip(l_BTU.split(cuts, 1), m_BTH.split(cuts, 1), strict=True):
        *both, state = cross(l_part, m_part, state)
        outputs.append(both)
    found = [torch.cat(of, 1) for of in zip(*outputs, strict=True)]
    torch.testing.assert_close(found, whole, **TIGHT)
    torch.testing.assert_close(state, last, **TIGHT)
    if window is not None:
        assert state.of_mamba.keys.shape[2] == min(17, window - 1)


@pytest.mark.parametrize("window", WINDOWS)
def test_later_tokens_change_nothing_before_them(window):
    cross, (l_BTU, m_BTH) = make(window), sides()
    before = cross(l_BTU, m_BTH)[:2]
    l_BTU[:, 9:] += 1.0
    m_BTH[:, 9:] -= 1.0
    after = cross(l_BTU, m_BTH)[:2]
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one[:, :9], other[:, :9], **TIGHT)
        assert not torch.isclose(one[:, 9:], other[:, 9:]).all(-1).any()


def test_gradients_through_blocks_are_those_of_the_plain_form():
    cross, (l_BTU, m_BTH) = make(window=4), sides()
    weights = list(cross.liquid_asks.parameters())
    found = torch.autograd.grad(cross(l_BTU, m_BTH)[0].square().sum(), weights)
    expected_BTU = plain(cross.liquid_asks, l_BTU, m_BTH, window=4)
    torch.testing.assert_close(
        found, torch.autograd.grad(expected_BTU.square().sum(), weights), **TIGHT
    )


def test_a_long_sequence_with_a_window_needs_no_square_of_its_length():
    largest = 0

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            found = func(*args, **(kwargs or {}))
            largest = max(largest, found.numel() if isinstance(found, torch.Tensor) else 0)
            return found

    cross = CrossAttention(4, 4, heads=1, window=8)
    with Sizes(), torch.no_grad():
        cross(torch.randn(1, 1024, 4), torch.randn(1, 1024, 4))
    assert 0 < largest <= 1024 * 8 * 4


def test_autocast_gives_nearly_the_same():
    cross = make().float()
    l_BTU, m_BTH = (of.float() for of in sides())
    with torch.autocast("cpu", torch.bfloat16):
        found = cross(l_BTU, m_BTH)[:2]
    torch.testing.assert_close(found, cross(l_BTU, m_BTH)[:2], rtol=0.05, atol=0.02)


@pytest.mark.parametrize(("heads", "window"), [(0, None), (9, None), (2, 0)])
def test_heads_without_channels_and_empty_windows_are_refused(heads, window):
    with pytest.raises(HoldfastError, match="choose 1 to 8 heads, and a window above 0"):
        CrossAttention(units=8, width=16, heads=heads, window=window)
