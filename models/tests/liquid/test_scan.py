from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast import HoldfastError
from holdfast_models.liquid.scan import chunk_length, scan

FAST = ("associative", "chunk")
CHUNK = chunk_length(1)
LENGTHS = (1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5)
TOLERANCE: dict[torch.dtype, dict[str, Any]] = {
    torch.float64: {"rtol": 1e-9, "atol": 1e-12},
    torch.float32: {"rtol": 1e-4, "atol": 1e-5},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
}


def inputs(batch: int, steps: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    torch.manual_seed(steps)
    decay, value = torch.rand(batch, steps, 3, 2), torch.randn(batch, steps, 3, 2)
    initial = torch.randn(batch, 3, 2)
    return tuple(x.to(dtype).requires_grad_() for x in (decay, value, initial))


def results(form: str, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """States, final state and all gradients of a loss that weighs every state differently."""
    states = scan(*given, form=form)
    weights = torch.linspace(-1, 2, states.numel(), dtype=states.dtype).view_as(states)
    loss = (states * weights).sum() + states[:, -1].square().sum()
    return states, states[:, -1], *torch.autograd.grad(loss, given)


def compare(form: str, given: tuple[Tensor, ...], tolerance: dict[str, Any]) -> None:
    for got, expected in zip(results(form, given), results("loop", given), strict=True):
        torch.testing.assert_close(got, expected, **tolerance)


@pytest.mark.parametrize("form", FAST)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("steps", LENGTHS)
def test_fast_forms_agree_with_the_loop_in_values_and_gradients(form, dtype, batch, steps):
    compare(form, inputs(batch, steps, dtype), TOLERANCE[dtype])


@pytest.mark.parametrize("form", FAST)
def test_two_levels_of_chunks(form):
    steps = 560
    assert steps / chunk_length(steps) > CHUNK
    compare(form, inputs(1, steps), TOLERANCE[torch.float64])


def test_wide_states_on_a_cpu_go_step_by_step_with_the_same_backward():
    torch.manual_seed(0)
    decay, value = torch.rand(1, 20, 512), torch.randn(1, 20, 512)
    initial = torch.randn(1, 512)
    given = tuple(x.double().requires_grad_() for x in (decay, value, initial))
    compare("chunk", given, TOLERANCE[torch.float64])


def test_loop_is_the_recurrence():
    decay, value, initial = inputs(2, 5)
    h = initial
    for t, state in enumerate(scan(decay, value, initial, form="loop").unbind(1)):
        h = decay[:, t] * h + value[:, t]
        torch.testing.assert_close(state, h)


@pytest.mark.parametrize("form", FAST)
@pytest.mark.parametrize("constant", [0.0, 1.0, 1e-30])
def test_extreme_decays(form, constant):
    decay, value, initial = inputs(2, 3 * CHUNK + 5)
    decay = torch.full_like(decay, constant).requires_grad_()
    compare(form, (decay, value, initial), TOLERANCE[torch.float64])


@pytest.mark.parametrize("form", FAST)
def test_large_values(form):
    decay, value, initial = inputs(2, 3 * CHUNK + 5, torch.float32)
    value = (value * 1e20).detach().requires_grad_()
    for got, expected in zip(
        results(form, (decay, value, initial))[:2],
        results("loop", (decay, value, initial)),
        strict=False,
    ):
        torch.testing.assert_close(got / 1e20, expected / 1e20, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("form", FAST)
def test_non_contiguous_inputs(form):
    def turned(x: Tensor) -> Tensor:
        return x.detach().transpose(0, -1).contiguous().transpose(0, -1).requires_grad_()

    decay, value, initial = inputs(3, CHUNK + 1)
    compare(form, (turned(decay), turned(value), turned(initial)), TOLERANCE[torch.float64])


@pytest.mark.parametrize("form", ("loop", *FAST))
@pytest.mark.parametrize("shape", [(), (2,), (1, 1, 3, 1), (2, 20, 1, 1)])
def test_decay_broadcasts_and_its_gradient_is_summed(form, shape):
    _, value, initial = inputs(2, 20)
    decay = torch.rand(shape, dtype=torch.float64, requires_grad=True)
    full = decay.detach().expand_as(value).clone().requires_grad_()
    small, big = results(form, (decay, value, initial)), results("loop", (full, value, initial))
    torch.testing.assert_close(small[0], big[0])
    torch.testing.assert_close(small[2], big[2].sum_to_size(shape))


def test_plain_number_as_decay_and_a_missing_initial_state():
    _, value, _ = inputs(2, 40)
    expected = torch.stack([0.5 ** (39 - torch.arange(40.0))], 1).view(1, 40, 1, 1)
    torch.testing.assert_close(scan(0.5, value)[:, -1], (value * expected).sum(1))


@pytest.mark.parametrize("form", FAST)
def test_half_precision_is_accumulated_in_float32(form):
    decay = torch.ones(1, 512, 1, dtype=torch.bfloat16)
    states = scan(decay, decay, form=form)
    assert states.dtype == torch.float32
    assert states[0, -1, 0] == 512  # bfloat16 counts to 256 and stays there


@pytest.mark.parametrize("form", FAST)
@pytest.mark.parametrize("steps", [1, 3, CHUNK + 2])
def test_first_and_second_derivatives(form, steps):
    given = tuple(x.detach()[..., :1, :1].clone().requires_grad_() for x in inputs(1, steps))
    torch.autograd.gradcheck(lambda *x: scan(*x, form=form), given)
    torch.autograd.gradgradcheck(lambda *x: scan(*x, form=form), given)


@pytest.mark.parametrize("form", ("loop", *FAST))
@pytest.mark.parametrize("cut", [1, CHUNK, CHUNK + 3])
def test_state_passing(form, cut):
    decay, value, initial = inputs(2, 2 * CHUNK + 5)
    whole = scan(decay, value, initial, form=form)
    first = scan(decay[:, :cut], value[:, :cut], initial, form=form)
    second = scan(decay[:, cut:], value[:, cut:], first[:, -1], form=form)
    torch.testing.assert_close(torch.cat([first, second], 1), whole, **TOLERANCE[torch.float64])


def test_one_step_at_a_time_equals_the_parallel_form():
    decay, value, h = inputs(2, 2 * CHUNK + 5)
    whole = scan(decay, value, h)
    for t in range(value.shape[1]):
        h = scan(decay[:, t : t + 1], value[:, t : t + 1], h)[:, -1]
        torch.testing.assert_close(h, whole[:, t], **TOLERANCE[torch.float64])


@pytest.mark.parametrize("form", ("loop", *FAST))
@pytest.mark.parametrize("changed", [0, CHUNK, 2 * CHUNK + 1])
def test_later_inputs_change_no_earlier_state(form, changed):
    decay, value, initial = (x.detach() for x in inputs(2, 2 * CHUNK + 5))
    before = scan(decay, value, initial, form=form)
    decay, value = decay.clone(), value.clone()
    decay[:, changed:] = 0.5
    value[:, changed:] += 100
    after = scan(decay, value, initial, form=form)
    assert torch.equal(before[:, :changed], after[:, :changed])
    assert (before[:, changed:] != after[:, changed:]).all()


def test_a_row_does_not_depend_on_the_batch_around_it():
    decay, value, initial = inputs(3, 3 * CHUNK + 5, torch.float32)
    whole = scan(decay, value, initial)
    assert torch.equal(scan(decay[1:2], value[1:2], initial[1:2]), whole[1:2])


def test_per_sample_gradients_by_vmap():
    decay, value, _ = (x.detach() for x in inputs(3, CHUNK + 2))

    def loss(decay: Tensor, value: Tensor) -> Tensor:
        return scan(decay[None], value[None]).square().sum()

    by_sample = torch.func.vmap(torch.func.grad(loss))(decay, value)
    for row, got in enumerate(by_sample):
        torch.testing.assert_close(got, torch.func.grad(loss)(decay[row], value[row]))


def test_unknown_form_is_named():
    with pytest.raises(HoldfastError, match="no form 'fft'"):
        scan(0.5, torch.zeros(1, 2, 3), form="fft")
