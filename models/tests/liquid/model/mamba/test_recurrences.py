"""Scan and matrix form of the state-space recurrence against the plain loop."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch.func import functional_call, grad, vmap

from holdfast_models.liquid.model.mamba import selective
from holdfast_models.liquid.model.mamba.mamba import Mamba
from holdfast_models.liquid.model.mamba.selective import selective_loop, selective_scan
from holdfast_models.liquid.model.mamba.ssd import ssd

TIGHT: Any = {"rtol": 1e-9, "atol": 1e-11}
FORMS = ("chunk", "associative")


@pytest.fixture(autouse=True)
def short_segments(monkeypatch):
    """Sequences of a test have several segments."""
    monkeypatch.setattr(selective, "_SEGMENT", 16)


def inputs(tokens, batch=2, channels=6, states=3, dtype=torch.float64):
    torch.manual_seed(tokens)
    x, b, c = (torch.randn(batch, tokens, size, dtype=dtype) for size in (channels, states, states))
    delta = torch.rand(batch, tokens, channels, dtype=dtype)
    a = -torch.rand(channels, states, dtype=dtype) * 3
    h = torch.randn(batch, channels, states, dtype=dtype)
    return [of.requires_grad_() for of in (x, delta, b, c, a, h)]


def results(function, given):
    """Outputs, last state, and the gradients of all inputs by a number that both enter."""
    y, h = function(*given)
    weight = torch.linspace(-1.0, 1.0, y.numel(), dtype=y.dtype).view_as(y)
    return [y, h, *torch.autograd.grad((y * weight).sum() + h.square().sum(), given)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 53])
def test_the_scan_equals_the_loop(tokens, form):
    given = inputs(tokens)
    expected = results(selective_loop, given)
    found = results(partial(selective_scan, form=form), given)
    torch.testing.assert_close(found, expected, **TIGHT)


def test_the_scan_in_fp32_and_with_inputs_that_are_not_contiguous():
    given = inputs(53, batch=3, dtype=torch.float32)
    turned = [of.detach().transpose(0, 1).contiguous().transpose(0, 1) for of in given]
    turned = [of.requires_grad_() for of in turned]
    assert not turned[0].is_contiguous()
    torch.testing.assert_close(
        results(selective_scan, turned), results(selective_loop, given), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("delta", [0.0, 1e4])
def test_step_sizes_at_their_ends(delta):
    """0 leaves the state as it is, a large one forgets it; gradients stay finite."""
    x, _, b, c, a, h = inputs(40)
    steps = torch.full_like(x, delta, requires_grad=True)
    found = results(selective_scan, [x, steps, b, c, a, h])
    torch.testing.assert_close(found, results(selective_loop, [x, steps, b, c, a, h]), **TIGHT)
    assert all(of.isfinite().all() for of in found)
    if delta == 0.0:
        torch.testing.assert_close(found[1], h, **TIGHT)


def by_heads(x, delta, b, c, a, h):
    """The loop with what the two heads of three channels share."""
    shared = a.repeat_interleave(3)[:, None].expand(-1, b.shape[-1])
    return selective_loop(x, delta.repeat_interleave(3, -1), b, c, shared, h)


@pytest.mark.parametrize("tokens", [1, 2, 63, 64, 65, 197])
def test_the_matrix_form_equals_the_loop(tokens):
    x, delta, b, c, a, h = (of.detach() for of in inputs(tokens))
    given = [of.requires_grad_() for of in (x, delta[..., :2], b, c, a[:2, 0], h)]
    torch.testing.assert_close(results(ssd, given), results(by_heads, given), **TIGHT)


def test_the_matrix_form_in_fp32_with_strong_decay():
    """Where a later token would be decayed backwards, the exponential overflows if not masked."""
    x, delta, b, c, a, h = (of.detach() for of in inputs(100, dtype=torch.float32))
    given = [of.requires_grad_() for of in (x, delta[..., :2] * 50, b, c, a[:2, 0] * 10, h)]
    found = results(ssd, given)
    assert all(of.isfinite().all() for of in found)
    torch.testing.assert_close(found, results(by_heads, given), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["scan", "segments", "ssd"])
def test_first_and_second_derivatives(name, monkeypatch):
    monkeypatch.setattr(selective, "_SEGMENT", 2 if name == "segments" else 16)
    x, delta, b, c, a, h = inputs(3, batch=1, channels=2, states=2)
    given = [x, delta, b, c, a, h]
    function = selective_scan
    if name == "ssd":
        function = ssd
        given[4] = a[:, 0].detach().requires_grad_()
    assert torch.autograd.gradcheck(function, given)
    assert torch.autograd.gradgradcheck(function, given)


@pytest.mark.parametrize("kind", ["selective", "ssd"])
def test_gradients_per_sample_are_those_of_samples_alone(kind):
    torch.manual_seed(0)
    mamba = Mamba(8, 2, kind=kind).double()
    x_BTH = torch.randn(3, 20, 8, dtype=torch.float64)
    weights = dict(mamba.named_parameters())

    def loss(weights, x_TH):
        return functional_call(mamba, weights, (x_TH[None],))[0].square().sum()

    together = vmap(grad(loss), (None, 0))(weights, x_BTH)
    alone = grad(loss)(weights, x_BTH[1])
    torch.testing.assert_close({name: of[1] for name, of in together.items()}, alone, **TIGHT)
