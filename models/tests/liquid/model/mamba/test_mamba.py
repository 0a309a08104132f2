from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from holdfast import HoldfastError
from holdfast_models.liquid.model.mamba.mamba import FORMS, KINDS, Mamba

TIGHT: Any = {"rtol": 1e-9, "atol": 1e-11}
CASES = [(kind, form) for kind in KINDS for form in FORMS]


def make(kind="selective", form="chunk", **options) -> Any:
    torch.manual_seed(0)
    return Mamba(8, 4, kind=kind, form=form, **options).double()


def sequence(tokens=21, width=8, batch=2):
    return torch.randn(batch, tokens, width, dtype=torch.float64)


def test_it_equals_mambapy():
    """Values, gradients and the final state, with its weights; it has no norm before the gate."""
    package = pytest.importorskip("mambapy.mamba")
    ours = make()
    ours.norm = nn.Identity()
    theirs = package.MambaBlock(package.MambaConfig(d_model=8, n_layers=1, d_state=4)).double()
    pairs = {
        "in_proj.weight": "in_proj.weight", "conv1d.weight": "conv.weight",
        "conv1d.bias": "conv.bias", "x_proj.weight": "x_proj.weight",
        "dt_proj.weight": "dt_proj.weight", "dt_proj.bias": "dt_proj.bias", "A_log": "a_log",
        "D": "skip", "out_proj.weight": "out_proj.weight",
    }  # fmt: skip
    ours.load_state_dict({pairs[name]: of for name, of in theirs.state_dict().items()})
    x_BTH = sequence()
    y_BTH, state = ours(x_BTH)
    expected_BTH = theirs(x_BTH)
    # It computes its rates in fp32, whatever it is given.
    torch.testing.assert_close(y_BTH, expected_BTH, rtol=1e-5, atol=1e-7)
    y_BTH.square().sum().backward()
    expected_BTH.square().sum().backward()
    for name, own in pairs.items():
        found, expected = ours.get_parameter(own).grad, theirs.get_parameter(name).grad
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)

    cache = (torch.zeros(2, 16, 4, dtype=torch.float64), torch.zeros(2, 16, 3, dtype=torch.float64))
    for x_BH in x_BTH.unbind(1):
        _, cache = theirs.step(x_BH, cache)
    torch.testing.assert_close(state.h_BDN, cache[0], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(state.tail_BCD, cache[1].transpose(1, 2), **TIGHT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["chunk", "associative"])
def test_every_form_equals_the_loop(kind, form):
    outcomes = []
    x_BTH = sequence(70)
    for one in ("loop", form):
        mamba = make(kind, one)
        y_BTH, state = mamba(x_BTH)
        loss = y_BTH.sin().sum() + state.h_BDN.cos().sum()
        outcomes.append([y_BTH, *state, *torch.autograd.grad(loss, list(mamba.parameters()))])
    torch.testing.assert_close(outcomes[1], outcomes[0], **TIGHT)


@pytest.mark.parametrize(("kind", "form"), CASES)
def test_parts_and_single_tokens_equal_one_run(kind, form):
    mamba, x_BTH = make(kind, form), sequence()
    whole_BTH, last = mamba(x_BTH)
    for cuts in ([7, 14], [1] * 21, [2, 19]):
        state, outputs = None, []
        for part_BTH in x_BTH.split(cuts, dim=1):
            y_BTH, state = mamba(part_BTH, state)
            outputs.append(y_BTH)
        torch.testing.assert_close(torch.cat(outputs, 1), whole_BTH, **TIGHT)
        torch.testing.assert_close(state, last, **TIGHT)


@pytest.mark.parametrize(("kind", "form"), CASES)
def test_later_tokens_change_nothing_before_them(kind, form):
    mamba, x_BTH = make(kind, form, liquid_units=3), sequence()
    nn.init.normal_(mamba.exchange.weight)
    l_BTU = sequence(width=3)
    before_BTH, _ = mamba(x_BTH, liquid_BTU=l_BTU)
    changed_BTH, changed_BTU = x_BTH.clone(), l_BTU.clone()
    changed_BTH[:, 9:] += 1.0
    changed_BTU[:, 9:] -= 1.0
    after_BTH, _ = mamba(changed_BTH, liquid_BTU=changed_BTU)
    # The loop computes each token alone; matrix products may round by their size.
    exact: Any = {"rtol": 0.0, "atol": 0.0} if form == "loop" else TIGHT
    torch.testing.assert_close(after_BTH[:, :9], before_BTH[:, :9], **exact)
    assert not torch.isclose(after_BTH[:, 9:], before_BTH[:, 9:]).all(-1).any()


def test_it_starts_as_specified():
    torch.manual_seed(0)
    mamba: Any = Mamba(64, 5)
    torch.testing.assert_close(mamba.a_log.exp(), torch.arange(1.0, 6.0).expand(128, 5))
    heads: Any = Mamba(128, 5, kind="ssd").a_log
    torch.testing.assert_close(heads.exp(), torch.tensor([1.0, 7 / 3, 11 / 3, 5.0]))
    assert mamba.a_log.no_decay and heads.no_decay
    delta = functional.softplus(mamba.dt_proj.bias)
    assert delta.min() >= 0.999e-3 and delta.max() <= 0.1001
    middle = math.log(1e-2)  # of the logarithms
    assert abs(delta.log().mean().item() - middle) < 0.4
    weight = mamba.dt_proj.weight.abs()  # of rank 4
    assert weight.max() <= 0.5 and abs(weight.mean().item() - 0.25) < 0.03
    assert (mamba.skip == 1).all() and (mamba.conv.bias == 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_exchange_changes_nothing_at_the_start_but_learns(kind):
    plain, joined = make(kind), make(kind, liquid_units=3)
    joined.load_state_dict(plain.state_dict(), strict=False)
    x_BTH, l_BTU = sequence(), sequence(width=3)
    y_BTH, _ = joined(x_BTH, liquid_BTU=l_BTU)
    torch.testing.assert_close(y_BTH, plain(x_BTH)[0], rtol=0.0, atol=0.0)
    y_BTH.square().sum().backward()
    assert (joined.exchange.weight.grad != 0).all()
    with pytest.raises(HoldfastError, match="give both or neither"):
        joined(x_BTH)
    with pytest.raises(HoldfastError, match="give both or neither"):
        plain(x_BTH, liquid_BTU=l_BTU)


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_is_trained_and_autocast_keeps_the_state_in_fp32(kind):
    torch.manual_seed(0)
    mamba: Any = Mamba(32, kind=kind)
    x_BTH = torch.randn(2, 12, 32)
    step_sizes = []
    mamba.dt_proj.register_forward_hook(lambda _, given, found: step_sizes.append(found.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        y_BTH, state = mamba(x_BTH)
        again_BTH, _ = mamba(x_BTH, state)
    assert step_sizes == [torch.float32] * 2  # products inside the recurrence too
    assert state.h_BDN.dtype == torch.float32 and again_BTH.dtype == torch.bfloat16
    torch.testing.assert_close(y_BTH.float(), mamba(x_BTH)[0], rtol=0.1, atol=0.02)
    y_BTH.float().square().sum().backward()
    assert all(of.grad.isfinite().all() and of.grad.any() for of in mamba.parameters())


def test_without_convolution_and_with_other_widths():
    mamba, x_BTH = Mamba(6, 2, conv=1, expand=3, kind="ssd").double(), sequence(5, width=6)
    whole_BTH, state = mamba(x_BTH)
    assert whole_BTH.shape == x_BTH.shape and state.tail_BCD.shape == (2, 0, 18)
    _, state = mamba(x_BTH[:, :2])
    torch.testing.assert_close(mamba(x_BTH[:, 2:], state)[0], whole_BTH[:, 2:], **TIGHT)


@pytest.mark.parametrize("options", [{"kind": "s4"}, {"form": "fft"}])
def test_an_unknown_kind_or_form_is_refused(options):
    with pytest.raises(HoldfastError, match="kinds are selective, ssd, forms chunk"):
        Mamba(8, **options)
