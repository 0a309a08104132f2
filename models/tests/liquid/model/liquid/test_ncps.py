"""Cells with copied weights give the numbers of the ncps package."""

import numpy as np
import pytest
import torch

from holdfast_models.liquid.model.liquid.cfc import CfC, WiredCfC
from holdfast_models.liquid.model.liquid.ltc import LTC
from holdfast_models.liquid.model.liquid.wirings import ncp_wiring

ncps = pytest.importorskip("ncps.torch")
wirings = pytest.importorskip("ncps.wirings")

B, T, F, U = 2, 9, 3, 6
HEADS = ("ff1", "ff2", "time_a", "time_b")


def copied(cell: CfC, theirs) -> None:
    with torch.no_grad():
        backbone = [] if theirs.backbone is None else list(theirs.backbone)[::2]
        for i, layer in enumerate(backbone):
            cell.weights[i].copy_(layer.weight)
            cell.biases[i].copy_(layer.bias)
        heads = [getattr(theirs, name) for name in HEADS if hasattr(theirs, name)]
        cell.weights[-1].copy_(torch.cat([head.weight for head in heads]))
        cell.biases[-1].copy_(torch.cat([head.bias for head in heads]))
        if cell.mode == "pure":
            cell.w_tau.copy_(theirs.w_tau[0])
            cell.amplitude.copy_(theirs.A[0])


def compare(cell, theirs, state_width: int, order=None) -> None:
    """Outputs, state and gradients of the inputs over a sequence with uneven times."""
    torch.manual_seed(1)
    x, dt = torch.randn(B, T, F, requires_grad=True), torch.rand(B, T) + 0.3
    h, outputs = torch.zeros(B, state_width), []
    for t in range(T):
        y, h = theirs(x[:, t], h, dt[:, t, None])
        outputs.append(y)
    expected = torch.stack(outputs, 1)
    got, state = cell(x, dt_BT=dt)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state, h if order is None else h[:, order], rtol=1e-4, atol=1e-5)
    gradients = [torch.autograd.grad(y.square().sum(), x)[0] for y in (got, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", ["default", "no_gate", "pure"])
@pytest.mark.parametrize("layers", [0, 1, 2])
def test_cfc(mode, layers):
    torch.manual_seed(0)
    theirs = ncps.CfCCell(F, U, mode, backbone_units=8, backbone_layers=layers)
    cell = CfC(F, U, mode, backbone_units=8, backbone_layers=layers)
    copied(cell, theirs)
    compare(cell, theirs, U)


def same_wiring(own):
    """The wiring of ours as an object of theirs."""
    sensory, between = own.adjacency()
    _, command, motor = own.sizes

    class Copied(wirings.Wiring):
        num_layers = 3

        def get_neurons_of_layer(self, layer):
            first = (motor + command, motor, 0)[layer]
            return list(range(first, first + own.sizes[layer]))

    theirs = Copied(own.units)
    theirs.build(F)
    theirs.set_output_dim(motor)
    theirs.adjacency_matrix = between.numpy().astype(np.int32)
    theirs.sensory_adjacency_matrix = sensory.numpy().astype(np.int32)
    return theirs


@pytest.mark.parametrize("mode", ["default", "no_gate", "pure"])
def test_wired_cfc(mode):
    torch.manual_seed(0)
    cell = WiredCfC(F, U, mode)
    theirs = ncps.WiredCfCCell(F, same_wiring(cell.wiring), mode)
    for own, layer in zip((cell.inter, cell.command, cell.motor), theirs._layers, strict=True):
        copied(own, layer)
    inter, command, motor = cell.wiring.sizes
    order = [*range(inter + command, inter + command + motor)]
    order += [*range(inter, inter + command), *range(inter)]
    compare(cell, theirs, cell.state_width, order)


@pytest.mark.parametrize("wired", [False, True])
def test_ltc(wired):
    torch.manual_seed(0)
    wiring = ncp_wiring(F, U) if wired else None
    theirs = ncps.LTCCell(
        wirings.FullyConnected(U) if wiring is None else same_wiring(wiring),
        F,
        input_mapping=None,
        output_mapping=None,
        implicit_param_constraints=True,
    )
    cell = LTC(F, U, wiring=wiring)
    with torch.no_grad():
        for own, prefix in ((cell.recurrent, ""), (cell.sensory, "sensory_")):
            own.w_raw.copy_(getattr(theirs, f"{prefix}w").T)
            own.sigma.copy_(getattr(theirs, f"{prefix}sigma").T)
            own.mu.copy_(getattr(theirs, f"{prefix}mu").T)
            own.reversal.copy_(getattr(theirs, f"{prefix}erev").T)
        cell.leak_raw.copy_(theirs.gleak)
        cell.rest.copy_(theirs.vleak)
        cell.capacity_raw.copy_(theirs.cm)
    compare(cell, theirs, cell.state_width)


@pytest.mark.parametrize(("units", "outputs"), [(12, 6), (112, 64), (20, 7)])
def test_sizes_and_synapses_of_a_wiring(units, outputs):
    theirs = wirings.AutoNCP(units, outputs)
    theirs.build(10)
    own = ncp_wiring(10, outputs, units)
    assert own.sizes == tuple(len(theirs.get_neurons_of_layer(i)) for i in range(3))
    assert (own.sensory != 0).sum(1).min() >= theirs._sensory_fanout
    assert (own.inter != 0).sum(1).min() >= theirs._inter_fanout
    assert (own.motor != 0).sum(0).min() >= theirs._motor_fanin
