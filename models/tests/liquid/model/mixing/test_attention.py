from __future__ import annotations

from typing import Any

import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.liquid.model.mixing.attention import SpikingAttention
from holdfast_models.liquid.model.mixing.causal import rotated

TIGHT: Any = {"rtol": 1e-9, "atol": 1e-11}
CASES = [
    {"spiking": spiking, "window": window, "rope": rope}
    for spiking in (True, False)
    for window in (None, 4)
    for rope in (True, False)
]


def make(**options) -> Any:
    torch.manual_seed(0)
    return SpikingAttention(8, heads=2, **options).double().eval()


def sequence(tokens=17):
    torch.manual_seed(1)
    return torch.randn(2, tokens, 8, dtype=torch.float64)


@pytest.mark.parametrize("options", CASES)
def test_the_cache_equals_the_full_pass(options):
    attention, x_BTH = make(**options), sequence()
    whole_BTH, last = attention(x_BTH)
    for cuts in ([6, 11], [2, 1, 14], [1] * 17):
        state, outputs = None, []
        for part_BTH in x_BTH.split(cuts, dim=1):
            y_BTH, state = attention(part_BTH, state)
            outputs.append(y_BTH)
        torch.testing.assert_close(torch.cat(outputs, 1), whole_BTH, **TIGHT)
        torch.testing.assert_close(state, last, **TIGHT)
    assert last.keys.shape == (2, 2, 17 if options["window"] is None else 3, 4)


@pytest.mark.parametrize("options", CASES)
def test_later_tokens_change_nothing_before_them(options):
    attention, x_BTH = make(**options), sequence()
    before_BTH, _ = attention(x_BTH)
    changed_BTH = x_BTH.clone()
    changed_BTH[:, 9:] += torch.randn(8, dtype=torch.float64)
    after_BTH, _ = attention(changed_BTH)
    torch.testing.assert_close(after_BTH[:, :9], before_BTH[:, :9], **TIGHT)
    assert not torch.isclose(after_BTH[:, 9:], before_BTH[:, 9:]).all(-1).any()


def test_a_token_does_not_see_beyond_its_window():
    attention, x_BTH = make(window=4, spiking=False), sequence()
    before_BTH, _ = attention(x_BTH)
    x_BTH[:, 5] += 1.0 + torch.arange(8)
    after_BTH, _ = attention(x_BTH)
    changed_T = ~torch.isclose(after_BTH, before_BTH).all(-1).all(0)
    assert changed_T.nonzero().flatten().tolist() == [5, 6, 7, 8]


@pytest.mark.parametrize("steps", [1, 5])
def test_the_cache_holds_rates_of_the_spiking_units(steps):
    attention, x_BTH = make(steps=steps), 3.0 * sequence()
    _, (keys, values) = attention(x_BTH)
    current = attention.query_key_value(attention.norm(x_BTH))
    rate = attention.lif.constant(current, steps).rate[..., 8:16]
    torch.testing.assert_close(keys.transpose(1, 2).flatten(2), rate, **TIGHT)
    for rates in (keys, values):
        times = rates * steps
        torch.testing.assert_close(times, times.round(), **TIGHT)
        assert rates.min() >= 0.0 and 0.0 < rates.max() <= 1.0


def test_options_of_the_spiking_units_arrive():
    attention, x_BTH = make(threshold=50.0), sequence()
    y_BTH, (keys, _) = attention(x_BTH)
    assert (keys == 0.0).all()
    torch.testing.assert_close(y_BTH, x_BTH, rtol=0.0, atol=0.0)  # silent: only the residual
    assert make(learn_beta=True).lif.beta_logit.shape == (24,)


def test_scores_depend_on_the_distance_of_tokens_only():
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64)
    for distance in (0, 3):
        scores = [
            (rotated(query, place + distance) * rotated(key, place)).sum() for place in (0, 5, 900)
        ]
        torch.testing.assert_close(scores[1:], [scores[0]] * 2, **TIGHT)
    torch.testing.assert_close(rotated(query, 0), query)
    torch.testing.assert_close(rotated(key, 7).norm(), key.norm())
    assert not torch.isclose((rotated(query, 3) * key).sum(), (query * key).sum())


def test_dropout_acts_while_training_only():
    attention, x_BTH = make(dropout=0.5), sequence()
    torch.testing.assert_close(attention(x_BTH)[0], make()(x_BTH)[0], rtol=0.0, atol=0.0)
    attention.train()
    assert not torch.allclose(attention(x_BTH)[0], attention(x_BTH)[0])


@pytest.mark.parametrize("spiking", [True, False])
def test_every_parameter_is_trained_and_autocast_gives_nearly_the_same(spiking):
    torch.manual_seed(0)
    attention: Any = SpikingAttention(32, heads=4, spiking=spiking, slope=2.0)
    x_BTH = torch.randn(2, 12, 32)
    with torch.autocast("cpu", torch.bfloat16):
        y_BTH, state = attention(x_BTH)
        attention(x_BTH[:, :1], state)
    torch.testing.assert_close(y_BTH, attention(x_BTH)[0], rtol=0.05, atol=0.05)
    y_BTH.square().sum().backward()
    assert all(of.grad.isfinite().all() and of.grad.any() for of in attention.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "width 8 has 3 heads"),
        ({"heads": 0}, "width 8 has 0 heads"),
        ({"heads": 8}, "width 8 has 8 heads.*even number"),
        ({"heads": 2, "window": 0}, "window is 0 tokens"),
    ],
)
def test_heads_and_windows_that_make_no_sense_are_refused(options, message):
    with pytest.raises(HoldfastError, match=message):
        SpikingAttention(8, **options)
    assert SpikingAttention(8, heads=8, rope=False).attention.heads == 8
