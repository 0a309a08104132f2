from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from holdfast_models.energy_flow.model.carrier import Carrier, GruLayer, scale_at
from holdfast_models.energy_flow.model.settings import CarrierSettings

N = 6


def carrier(**options) -> Carrier:
    torch.manual_seed(0)
    return Carrier(CarrierSettings(**{"hidden": 16, "neuron_output": 8, **options}))


def inputs(one: Carrier) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    settings = one.settings
    h_LNC = torch.rand(settings.layers, N, settings.hidden) * 2 - 1
    return torch.randn(N, settings.neuron_output), torch.randn(N, 1), h_LNC


def trained(one: Carrier) -> Carrier:
    """With ends that are no longer zero."""
    for end in (one.energy_end, one.move_end):
        nn.init.normal_(end.weight)
        nn.init.normal_(end.bias)
    return one


def as_gru(one: Carrier) -> nn.GRU:
    """torch's own GRU with the same numbers in it."""
    settings = one.settings
    gru = nn.GRU(settings.neuron_output + 1, settings.hidden, settings.layers)
    for number, layer in enumerate(one.layers):
        own = {f"{name}_l{number}": weight.detach() for name, weight in layer.named_parameters()}
        gru.load_state_dict({**gru.state_dict(), **own})
    return gru


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_state_moves_on_as_in_the_gru_of_torch(layers):
    one = carrier(layers=layers)
    gru, (u_No, e_N1, h_LNC) = as_gru(one), inputs(one)
    for _ in range(3):
        _, expected_LNC = gru(torch.cat((u_No, e_N1), -1)[None], h_LNC)
        _, _, h_LNC, _ = one.step(u_No, e_N1, h_LNC, 1.0)
        torch.testing.assert_close(h_LNC, expected_LNC, atol=1e-6, rtol=0)


def test_its_gradients_are_those_of_the_gru_of_torch():
    one = carrier(layers=2)
    gru, (u_No, e_N1, h_LNC) = as_gru(one), inputs(one)
    gru(torch.cat((u_No, e_N1), -1)[None], h_LNC)[1].square().sum().backward()
    one.step(u_No, e_N1, h_LNC, 1.0)[2].square().sum().backward()
    for number, layer in enumerate(one.layers):
        for name, weight in layer.named_parameters():
            expected = getattr(gru, f"{name}_l{number}").grad
            torch.testing.assert_close(weight.grad, expected, atol=1e-5, rtol=1e-5)


def test_untrained_flows_keep_their_energy_and_their_place():
    one = carrier()
    u_No, e_N1, h_LNC = inputs(one)
    new_N1, delta_N3, _, _ = one.step(u_No, e_N1, h_LNC, 1.0)
    assert torch.equal(new_N1, e_N1)
    assert not delta_N3.any()


def test_untrained_heads_learn_from_the_first_gradient():
    one = carrier()
    u_No, e_N1, h_LNC = inputs(one)
    new_N1, delta_N3, _, _ = one.step(u_No, e_N1, h_LNC, 1.0)
    (new_N1.sum() + delta_N3.sum()).backward()
    for end in (one.energy_end, one.move_end):
        assert end.weight.grad is not None and end.weight.grad.any()


def test_a_tanh_head_replaces_the_energy_and_starts_to_move_at_once():
    one = carrier(energy="tanh")
    u_No, e_N1, h_LNC = inputs(one)
    new_N1, delta_N3, new_LNC, _ = one.step(u_No, e_N1, h_LNC, 1.0)
    hidden = nn.functional.gelu(one.heads(new_LNC[-1]))
    torch.testing.assert_close(new_N1, torch.tanh(one.energy_end(hidden[:, :8])))
    assert delta_N3.abs().min() > 0


def test_heads_read_the_top_layer_as_specified():
    one = trained(carrier())
    u_No, e_N1, h_LNC = inputs(one)
    new_N1, delta_N3, new_LNC, _ = one.step(u_No, e_N1, h_LNC, 1.5)
    hidden = nn.functional.gelu(one.heads(new_LNC[-1]))
    expected_N1 = (e_N1 + one.energy_end(hidden[:, :8])).clamp(-4, 4)
    torch.testing.assert_close(new_N1, expected_N1)
    expected_N3 = 0.5 * torch.tanh(2 * 1.5 * one.move_end(hidden[:, 8:]))
    torch.testing.assert_close(delta_N3, expected_N3)


@pytest.mark.parametrize("bound", ["tanh", "clamp"])
def test_displacements_stay_within_half_a_unit(bound):
    one = trained(carrier(bound=bound))
    u_No, e_N1, h_LNC = inputs(one)
    free_N3 = one.step(u_No, e_N1, h_LNC, 1e-3)[1]
    assert 0 < free_N3.abs().max() < 0.02
    assert one.step(u_No, e_N1, h_LNC, 1e3)[1].abs().max() == 0.5


def test_a_scale_on_the_device_does_what_a_number_does():
    one = trained(carrier())
    given = inputs(one)
    assert torch.equal(one.step(*given, torch.tensor(2.0))[1], one.step(*given, 2.0)[1])


def test_energies_stay_within_four():
    one = trained(carrier())
    u_No, _, h_LNC = inputs(one)
    e_N1 = torch.full((N, 1), 100.0)
    assert torch.equal(one.step(u_No, e_N1, h_LNC, 1.0)[0], torch.full((N, 1), 4.0))


def test_states_stay_within_one_for_ever_even_on_the_worst_input():
    one = carrier()
    h_LNC = torch.zeros(2, N, 16)
    for sign in (1, -1, 1, 1, -1) * 4:
        _, _, h_LNC, _ = one.step(torch.full((N, 8), sign * 1e9), torch.ones(N, 1), h_LNC, 1.0)
    assert 0.5 < h_LNC.abs().max() <= 1


def test_inputs_that_are_not_finite_or_out_of_range_are_guarded_and_counted():
    one = carrier()
    u_No, e_N1, h_LNC = inputs(one)
    u_No[0, 0], u_No[1, 1], u_No[2, 2], u_No[3, 3] = math.nan, math.inf, -math.inf, 10.5
    guarded_No = u_No.clone()
    guarded_No[0, 0], guarded_No[1, 1], guarded_No[2, 2], guarded_No[3, 3] = 0.0, 10, -10, 10
    _, _, new_LNC, guarded = one.step(u_No, e_N1, h_LNC, 1.0)
    _, _, expected_LNC, none = one.step(guarded_No, e_N1, h_LNC, 1.0)
    assert torch.equal(new_LNC, expected_LNC)
    assert (guarded, none) == (4, 0)
    assert guarded.shape == ()


def test_an_energy_that_is_not_a_number_is_not_hidden():
    one = carrier()
    u_No, e_N1, h_LNC = inputs(one)
    e_N1[2] = math.nan
    new_N1, _, new_LNC, guarded = one.step(u_No, e_N1, h_LNC, 1.0)
    assert new_N1.isnan().flatten().tolist() == [False, False, True, False, False, False]
    assert new_LNC.isfinite().all() and guarded == 1


def test_what_a_step_is_given_is_not_written_to():
    one = trained(carrier())
    given = inputs(one)
    before = [tensor.clone() for tensor in given]
    one.step(*given, 1.0)
    assert all(torch.equal(*pair) for pair in zip(given, before, strict=True))


def test_a_step_reads_nothing_back_from_the_device():
    one = carrier().to("meta")  # whose tensors have no values to read
    u_No, e_N1, h_LNC = (tensor.to("meta") for tensor in inputs(one))
    new_N1, delta_N3, new_LNC, guarded = one.step(u_No, e_N1, h_LNC, 1.0)
    (new_N1.sum() + delta_N3.sum() + new_LNC.sum()).backward()
    assert guarded.is_meta and one.heads.weight.grad is not None


def test_flows_do_not_see_each_other():
    one = trained(carrier())
    u_No, e_N1, h_LNC = inputs(one)
    whole = one.step(u_No, e_N1, h_LNC, 1.0)
    alone = one.step(u_No[3:4], e_N1[3:4], h_LNC[:, 3:4], 1.0)
    torch.testing.assert_close(alone[0], whole[0][3:4])
    torch.testing.assert_close(alone[2], whole[2][:, 3:4])


def test_the_first_state_of_a_layer_is_sound():
    torch.manual_seed(0)
    layer = GruLayer(9, 16)
    torch.testing.assert_close(layer.weight_hh.T @ layer.weight_hh, torch.eye(16))
    assert layer.weight_ih.abs().max() <= math.sqrt(6 / (9 + 48))
    for bias in (layer.bias_ih, layer.bias_hh):
        assert torch.equal(bias, torch.tensor([0.0, 1.0, 0.0]).repeat_interleave(16))


def test_each_head_is_drawn_for_its_own_width():
    torch.manual_seed(0)
    one = Carrier(CarrierSettings(hidden=512))
    energy, move = one.heads.weight.detach().split((256, 64))
    assert energy.std() == pytest.approx(math.sqrt(2 / (512 + 256)), rel=0.02)
    assert move.std() == pytest.approx(math.sqrt(2 / (512 + 64)), rel=0.02)


def test_in_bfloat16_the_energies_and_displacements_keep_their_precision():
    one = trained(carrier())
    given = inputs(one)
    with torch.autocast("cpu", torch.bfloat16):
        new_N1, delta_N3, half_LNC, _ = one.step(given[0], given[1], given[2].bfloat16(), 1.0)
    full_N1, full_N3, _, _ = one.step(*given, 1.0)
    assert (new_N1.dtype, delta_N3.dtype) == (torch.float32, torch.float32)
    assert half_LNC.dtype == torch.bfloat16
    torch.testing.assert_close(new_N1, full_N1, atol=0.1, rtol=0.1)
    torch.testing.assert_close(delta_N3, full_N3, atol=0.1, rtol=0.1)


def test_the_scale_is_constant_by_default_and_falls_in_stairs_to_its_least():
    assert {scale_at(step, CarrierSettings()) for step in (0, 99, 100, 5000)} == {1.0}
    falling = CarrierSettings(scale=4.0, scale_min=1.0, scale_decay=0.5, scale_warmup=100)
    steps = (0, 99, 100, 109, 110, 119, 120, 10_000)
    assert [scale_at(step, falling) for step in steps] == [4, 4, 4, 4, 2, 2, 1, 1]
