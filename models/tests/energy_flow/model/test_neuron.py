from __future__ import annotations

import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.energy_flow.model.coordinates import start_S3
from holdfast_models.energy_flow.model.neuron import Neuron
from holdfast_models.energy_flow.model.settings import CarrierSettings, LatticeSettings


def neuron(**options) -> Neuron:
    torch.manual_seed(0)
    return Neuron(CarrierSettings(), **options)


def test_it_answers_in_its_output_width_with_as_few_parameters_as_specified():
    one = neuron()
    assert one(torch.zeros(7, 3), torch.zeros(7, 1)).shape == (7, 64)
    # 3504 in the specification, of which 9 rows of 4 belong to coordinates that were thrown away.
    assert sum(weight.numel() for weight in one.parameters()) == 3504 - 36


def test_it_answers_differently_at_every_cell():
    p_S3 = start_S3(LatticeSettings(width=20, height=20, depth=10))
    u_So = neuron()(p_S3, torch.full((400, 1), 0.3))
    distance_SS = torch.cdist(u_So, u_So) + torch.eye(400) * 1e9
    assert distance_SS.min() > 1e-3


def test_it_sees_the_whole_box_and_not_a_corner_of_it():
    # Positions normalised twice would lie within 4 / 19 of the corner.
    one = neuron()
    ends = torch.tensor([[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    squeezed = torch.tensor([[-1.0, -1.0, -1.0], [-1.0 + 4 / 19, -1.0, -1.0]])
    e_N1 = torch.zeros(2, 1)
    far = (one(ends, e_N1)[0] - one(ends, e_N1)[1]).norm()
    near = (one(squeezed, e_N1)[0] - one(squeezed, e_N1)[1]).norm()
    assert far > 3 * near


def test_biases_start_at_zero_and_weights_do_not():
    for name, weight in neuron().named_parameters():
        if weight.dim() == 2:
            assert weight.abs().min() > 0, name
        elif name.endswith("bias"):
            assert not weight.any(), name


def test_gradients_reach_position_energy_and_every_parameter():
    one = neuron()
    p_N3, e_N1 = torch.rand(5, 3, requires_grad=True), torch.rand(5, 1, requires_grad=True)
    one(p_N3, e_N1).square().sum().backward()
    for tensor in (p_N3, e_N1, *one.parameters()):
        assert tensor.grad is not None and tensor.grad.any()


def test_with_coupling_the_field_is_read():
    one = neuron(coupling=True)
    p_N3, e_N1 = torch.zeros(1, 3), torch.zeros(1, 1)
    here, there = (one(p_N3, e_N1, torch.full((1, 1), value)) for value in (0.0, 0.5))
    assert (here - there).norm() > 1e-3


def test_a_field_that_is_missing_or_not_wanted_is_refused():
    p_N3, e_N1 = torch.zeros(1, 3), torch.zeros(1, 1)
    with pytest.raises(HoldfastError, match="made with coupling and is given no field"):
        neuron(coupling=True)(p_N3, e_N1)
    with pytest.raises(HoldfastError, match="made without coupling and is given a field"):
        neuron()(p_N3, e_N1, e_N1)
