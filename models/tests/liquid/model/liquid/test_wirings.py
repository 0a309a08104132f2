import math

import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.liquid.model.liquid.cfc import WiredCfC
from holdfast_models.liquid.model.liquid.wirings import ncp_units, ncp_wiring


@pytest.mark.parametrize("outputs", [5, 16, 64, 128, 256])
def test_sizes_leave_no_bottleneck_in_front_of_the_outputs(outputs):
    units = ncp_units(outputs)
    assert units == math.ceil(1.75 * outputs)
    wiring = ncp_wiring(8, outputs)
    inter, command, motor = wiring.sizes
    assert inter + command + motor == units and motor == outputs
    assert command == int(0.4 * (units - outputs))
    # With 64 outputs the reference has 3 inter neurons and 1 command neuron.
    assert command >= int(0.3 * outputs) and inter > command


@pytest.mark.parametrize("outputs", [1, 2, 3, 16])
@pytest.mark.parametrize("inputs", [1, 7, 100])
def test_synapses_are_as_dense_as_told_and_no_neuron_is_alone(inputs, outputs):
    wiring = ncp_wiring(inputs, outputs)
    inter, command, _ = wiring.sizes
    for polarity in wiring:
        assert set(polarity.flatten().tolist()) <= {-1.0, 0.0, 1.0}
    for matrix, fan in (
        (wiring.sensory, inter),
        (wiring.inter, command),
        (wiring.motor.T, command),
    ):
        linked = matrix != 0
        assert (linked.sum(1) >= max(1, int(0.5 * fan))).all()
        assert linked.any(0).all()
    recurrent = int((wiring.recurrent != 0).sum())
    assert 1 <= recurrent <= max(1, command)


def test_adjacency_puts_motor_neurons_first():
    wiring = ncp_wiring(4, 6)
    _, command, motor = wiring.sizes
    sensory, between = wiring.adjacency()
    assert torch.equal(sensory[:, motor + command :], wiring.sensory)
    assert torch.equal(between[motor : motor + command, :motor], wiring.motor)
    assert torch.equal(between[motor + command :, motor : motor + command], wiring.inter)
    assert not sensory[:, : motor + command].any() and not between[:motor].any()


def test_wiring_comes_from_its_seed_alone():
    torch.manual_seed(0)
    first = ncp_wiring(4, 6, seed=5)
    torch.manual_seed(1)
    second = ncp_wiring(4, 6, seed=5)
    other = ncp_wiring(4, 6, seed=6)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first.sensory, other.sensory)


def test_inputs_without_a_synapse_do_not_reach_a_candidate_state():
    cell = WiredCfC(3, 6).inter
    mask = cell.mask
    assert mask is not None
    absent = (mask[: cell.units, :3] == 0).nonzero()[0]
    (weight, _) = cell._layers()[-1]
    assert weight[absent[0], absent[1]] == 0 and cell.weights[-1][absent[0], absent[1]] != 0


def test_too_few_neurons_are_refused():
    with pytest.raises(HoldfastError, match="66 neurons has too few for 64 outputs"):
        ncp_wiring(8, 64, 66)
