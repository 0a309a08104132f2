import math

import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.liquid.model.spiking.lif import LIF, RESETS

EVERY_RESET = pytest.mark.parametrize("reset", RESETS)


def current(*shape, dtype=torch.float64):
    torch.manual_seed(3)
    return (torch.randn(shape, dtype=dtype) + 0.3).requires_grad_()


def gradients(train, membranes, *wanted):
    weights = torch.linspace(-1, 2, train.numel(), dtype=train.dtype).view_as(train)
    loss = (train * weights).sum() + (membranes * weights.flip(0)).square().sum()
    return torch.autograd.grad(loss, wanted)


@EVERY_RESET
@pytest.mark.parametrize("steps", [1, 2, 10, 40])
@pytest.mark.parametrize("learned", [False, True])
def test_values_and_gradients_of_the_plain_loop(lif_loop, reset, steps, learned):
    lif = LIF(5, reset=reset, slope=4, learn_beta=learned, learn_threshold=learned).double()
    i, start = current(steps, 2, 5), current(2, 5)
    wanted = (i, start, *lif.parameters())
    fast, slow = lif.run(i, start), lif_loop(lif, i, start)
    assert torch.equal(fast[0], slow[0]) and 0 < fast[0].mean() < 1
    torch.testing.assert_close(fast[1], slow[1], rtol=1e-9, atol=1e-12)
    for got, expected in zip(gradients(*fast, *wanted), gradients(*slow, *wanted), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("reset", ["subtract", "zero"])
def test_spikes_in_float32_are_those_of_float64(reset):
    lif, i = LIF(50, reset=reset), current(40, 20, 50)
    spikes, exact = lif.steps(i.float()), lif.steps(i)
    assert (spikes.train != exact.train).double().mean() <= 1e-4
    torch.testing.assert_close(spikes.rate.double(), exact.rate, rtol=0, atol=1 / 40 + 1e-6)


def test_membrane_of_a_constant_current_without_reset():
    i = torch.linspace(-1, 1, 5, dtype=torch.float64)
    _, membranes = LIF(5, reset="none").run(i.expand(40, 5))
    t = torch.arange(1, 41, dtype=torch.float64)[:, None]
    torch.testing.assert_close(membranes, i * (1 - 0.95**t) / 0.05, rtol=1e-12, atol=1e-12)


@EVERY_RESET
def test_first_spike_of_a_constant_current(reset):
    # The last three lie below threshold * (1 - beta) and never fire.
    strengths = [1.7, 0.9, 0.31, 0.11, 0.063, 0.0501, 0.0499, 0.0, -1.0]
    i = torch.tensor(strengths, dtype=torch.float64)
    train = LIF(9, reset=reset).constant(i, 200).train
    for unit, strength in enumerate(strengths):
        fired = train[:, unit].nonzero().flatten()
        if strength > 0.05:
            assert fired[0] + 1 == math.ceil(math.log(1 - 0.05 / strength) / math.log(0.95))
        else:
            assert len(fired) == 0


@EVERY_RESET
@pytest.mark.parametrize("surrogate", ["fast_sigmoid", "atan"])
def test_values_and_gradients_of_snntorch(reset, surrogate):
    snntorch = pytest.importorskip("snntorch")
    lif = LIF(5, beta=0.9, threshold=0.8, reset=reset, surrogate=surrogate)
    bump = getattr(pytest.importorskip("snntorch.surrogate"), surrogate)(lif.slope.item())
    theirs = snntorch.Leaky(0.9, threshold=0.8, spike_grad=bump, reset_mechanism=reset)
    i = current(30, 2, 5, dtype=torch.float32)
    mem, steps = torch.zeros(2, 5), []
    for step in i.unbind(0):
        spk, mem = theirs(step, mem)
        steps.append((spk, mem))
    expected = tuple(torch.stack(x) for x in zip(*steps, strict=True))
    got = lif.run(i)
    assert torch.equal(got[0], expected[0])
    torch.testing.assert_close(got[1], expected[1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gradients(*got, i), gradients(*expected, i), rtol=1e-4, atol=1e-3)


@EVERY_RESET
@pytest.mark.parametrize("cut", [1, 7, 20])
def test_sequence_carries_the_membrane_on(reset, cut):
    lif, x = LIF(4, reset=reset), current(2, 30, 4)
    whole, last = lif.sequence(x)
    first, state = lif.sequence(x[:, :cut])
    second, end = lif.sequence(x[:, cut:], state)
    assert torch.equal(torch.cat([first.rate, second.rate], 1), whole.rate)
    torch.testing.assert_close(torch.cat([first.membrane, second.membrane], 1), whole.membrane)
    torch.testing.assert_close(end, last)
    assert whole.train.shape == (1, 2, 30, 4) and state.shape == (2, 4)


def test_constant_current_gives_means_over_the_steps(lif_loop):
    lif, i = LIF(4), current(2, 3, 4)
    spikes = lif.constant(i, 8)
    train, membranes = lif_loop(lif, i.expand(8, 2, 3, 4))
    assert torch.equal(spikes.train, train)
    torch.testing.assert_close(spikes.rate, train.mean(0))
    torch.testing.assert_close(spikes.membrane, membranes.mean(0))
    near = ((membranes - 1).abs() < 1 / 25).double().mean()
    torch.testing.assert_close(spikes.near.double().sum(), near, rtol=1e-6, atol=0)
    assert not spikes.near.requires_grad


def test_threshold_and_beta_take_effect():
    i = current(2, 50)
    assert LIF(50, threshold=0.5).constant(i, 10).rate.sum() > LIF(50).constant(i, 10).rate.sum()
    assert LIF(50, beta=0.5).constant(i, 10).rate.sum() < LIF(50).constant(i, 10).rate.sum()


def test_learned_beta_and_threshold_start_where_they_were_reported():
    lif = LIF(3, beta=0.9, threshold=0.7, learn_beta=True, learn_threshold=True)
    torch.testing.assert_close(lif.beta, torch.full((3,), 0.9))
    torch.testing.assert_close(lif.threshold, torch.full((3,), 0.7))


def test_annealed_slope_widens_the_gradient_and_is_in_the_state():
    lif, i = LIF(50), current(2, 50)

    def size():
        return torch.autograd.grad(lif.constant(i, 10).rate.sum(), i)[0].abs().sum()

    narrow = size()
    lif.slope.fill_(2.0)
    assert size() > 2 * narrow
    assert lif.state_dict()["slope"] == 2


def test_half_precision_currents_are_integrated_in_float32():
    spikes = LIF(5).constant(current(3, 5).bfloat16(), 10)
    assert spikes.membrane.dtype == spikes.train.dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "said"),
    [({"reset": "hard"}, "no reset 'hard'"), ({"beta": 1.0}, "1.0"), ({"threshold": 0.0}, "0.0")],
)
def test_bad_options_are_named(options, said):
    with pytest.raises(HoldfastError, match=said):
        LIF(2, **options)
