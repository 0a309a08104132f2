from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from holdfast import HoldfastError
from holdfast_models.liquid.model.mixing.conversion import METHODS, SpikesToMamba

TIGHT: Any = {"rtol": 1e-9, "atol": 1e-11}


def make(method, **options):
    torch.manual_seed(0)
    return SpikesToMamba(method, units=3, width=5, **options).double()


def bare(method, **options):
    """Without the projection, to look at the smoothing alone."""
    convert: Any = SpikesToMamba(method, units=3, width=3, **options)
    convert.proj = nn.Identity()
    return convert


def spikes(tokens=23):
    torch.manual_seed(1)
    rate_BTK = torch.rand(2, tokens, 3, dtype=torch.float64)
    return rate_BTK, torch.randn_like(rate_BTK)


def test_the_rate_is_a_mean_over_the_tokens_there_are():
    rate_BTK, membrane_BTK = spikes()
    found_BTK, _ = bare("rate", window=10)(rate_BTK, membrane_BTK)
    for t in range(23):
        expected_BK = rate_BTK[:, max(0, t - 9) : t + 1].mean(1)
        torch.testing.assert_close(found_BTK[:, t], expected_BK, **TIGHT)


def test_the_count_goes_on_with_the_state():
    """After 4 tokens the fifth divides by 5, not by 1 and not by 10."""
    rate_BTK, membrane_BTK = torch.ones(2, 5, 3), torch.zeros(2, 5, 3)
    convert = bare("rate", window=10)
    _, state = convert(rate_BTK[:, :4], membrane_BTK[:, :4])
    last_BTK, state = convert(rate_BTK[:, 4:], membrane_BTK[:, 4:], state)
    torch.testing.assert_close(last_BTK, torch.ones(2, 1, 3))
    assert state.seen_B.tolist() == [5, 5]


def test_the_trace_forgets_exponentially():
    rate_BTK, membrane_BTK = torch.zeros(1, 30, 3), torch.zeros(1, 30, 3)
    rate_BTK[:, 4] = 1.0
    trace_BTK, _ = bare("temporal", tau=7.0)(rate_BTK, membrane_BTK)
    distance_T = torch.arange(26.0)
    expected_T = (1 - math.exp(-1 / 7)) * torch.exp(-distance_T / 7)
    assert (trace_BTK[:, :4] == 0).all()
    torch.testing.assert_close(trace_BTK[0, 4:, 1], expected_T)


def test_the_potential_is_the_membrane():
    rate_BTK, membrane_BTK = spikes()
    found_BTK, state = bare("potential")(rate_BTK, membrane_BTK)
    assert found_BTK is membrane_BTK and state == ()


@pytest.mark.parametrize("method", METHODS)
def test_parts_and_single_tokens_equal_one_run(method):
    convert, (rate_BTK, membrane_BTK) = make(method), spikes()
    whole_BTH, last = convert(rate_BTK, membrane_BTK)
    assert whole_BTH.shape == (2, 23, 5)
    for cuts in ([11, 12], [2, 3, 18], [1] * 23):
        state, outputs = None, []
        parts = zip(rate_BTK.split(cuts, 1), membrane_BTK.split(cuts, 1), strict=True)
        for rate, membrane in parts:
            y_BTH, state = convert(rate, membrane, state)
            outputs.append(y_BTH)
        torch.testing.assert_close(torch.cat(outputs, 1), whole_BTH, **TIGHT)
        torch.testing.assert_close(state, last, **TIGHT)


@pytest.mark.parametrize("method", METHODS)
def test_later_tokens_change_nothing_before_them(method):
    convert, (rate_BTK, membrane_BTK) = make(method), spikes()
    before_BTH, _ = convert(rate_BTK, membrane_BTK)
    rate_BTK[:, 9:] += 1.0
    membrane_BTK[:, 9:] += 1.0
    after_BTH, _ = convert(rate_BTK, membrane_BTK)
    torch.testing.assert_close(after_BTH[:, :9], before_BTH[:, :9], **TIGHT)
    assert not torch.isclose(after_BTH[:, 9:], before_BTH[:, 9:]).all(-1).any()


@pytest.mark.parametrize("method", ["rate", "temporal"])
def test_under_autocast_the_memory_stays_in_fp32(method):
    torch.manual_seed(0)
    convert, rate_BTK = SpikesToMamba(method, 8, 8), torch.rand(2, 12, 8)
    with torch.autocast("cpu", torch.bfloat16):
        y_BTH, state = convert(rate_BTK.bfloat16(), rate_BTK)
    memory = state.tail_BWK if method == "rate" else state
    assert memory.dtype == torch.float32
    torch.testing.assert_close(y_BTH.float(), convert(rate_BTK, rate_BTK)[0], rtol=0.05, atol=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "phase"}, "by 'phase'.*rate, temporal, potential"),
        ({"method": "rate", "window": 0}, "window 0 tokens"),
        ({"method": "temporal", "tau": 0.0}, "tau 0 and"),
    ],
)
def test_a_conversion_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(HoldfastError, match=message):
        SpikesToMamba(units=3, width=5, **options)
