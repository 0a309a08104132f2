"""What every liquid cell must do, asked of all of them."""

from typing import Any

import pytest
import torch
from torch.func import functional_call, grad, vmap

from holdfast import HoldfastError
from holdfast_models.liquid.model.liquid.cell import LiquidCell
from holdfast_models.liquid.model.liquid.cfc import CfC
from holdfast_models.liquid.model.liquid.ltc import LTC
from holdfast_models.liquid.model.liquid.make import BACKBONES, make_liquid
from holdfast_models.liquid.model.liquid.scan_cell import LTCScan
from holdfast_models.liquid.model.liquid.wirings import ncp_wiring

B, T, F, U = 2, 21, 3, 6
CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "cfc": ("cfc", {"backbone_units": 8}),
    "cfc without backbone": ("cfc", {"backbone_layers": 0}),
    "cfc of two layers": ("cfc", {"backbone_units": 8, "backbone_layers": 2}),
    "cfc no_gate": ("cfc", {"backbone_units": 8, "mode": "no_gate"}),
    "cfc pure": ("cfc", {"backbone_units": 8, "mode": "pure"}),
    "ltc": ("ltc", {"unfolds": 3}),
    "wired ltc": ("ltc", {"unfolds": 3, "wiring": ncp_wiring(F, U)}),
    "ncp": ("ncp", {}),
    "ncp pure": ("ncp", {"mode": "pure"}),
    "ltc_scan": ("ltc_scan", {}),
    "ltc_scan loop": ("ltc_scan", {"form": "loop"}),
}
EVERY = pytest.mark.parametrize("name", CELLS)


def made(name: str) -> LiquidCell:
    torch.manual_seed(0)
    backbone, options = CELLS[name]
    cell = make_liquid(backbone, F, U, **options).double()
    with torch.no_grad():  # biases and the like away from their start
        for parameter in cell.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return cell


def tokens(steps: int = T) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.rand(B, steps, F, dtype=torch.float64) * 2 - 0.5


def times(cell: LiquidCell) -> dict[str, torch.Tensor]:
    torch.manual_seed(2)
    dt, scale = torch.rand(B, T) + 0.2, torch.rand(B, T, U) + 0.5
    return {"dt_BT": dt.double(), "tau_scale_BTU": scale.double().requires_grad_()}


@EVERY
@pytest.mark.parametrize("timed", [False, True])
def test_values_and_gradients_of_the_reference(name, timed):
    cell = made(name)
    x = tokens().requires_grad_()
    state = (torch.rand(B, cell.state_width).double() - 0.5).requires_grad_()
    options = times(cell) if timed else {}
    wanted = [x, state, *cell.parameters()]
    if timed:
        wanted.append(options["tau_scale_BTU"])
    outcomes = []
    for run in (cell.forward, cell.reference):
        outputs, last = run(x, state, **options)
        weights = torch.linspace(-1, 2, outputs.numel(), dtype=outputs.dtype).view_as(outputs)
        loss = (outputs * weights).sum() + last.square().sum()
        outcomes.append((outputs, last, *torch.autograd.grad(loss, wanted)))
    assert outcomes[0][0].shape == (B, T, U) and outcomes[0][1].shape == (B, cell.state_width)
    for got, expected in zip(*outcomes, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11)


@EVERY
@pytest.mark.parametrize("cut", [1, 7])
def test_state_passing(name, cut):
    cell, x = made(name), tokens()
    options = times(cell)
    whole, end = cell(x, **options)
    first, state = cell(x[:, :cut], **{k: v[:, :cut] for k, v in options.items()})
    second, last = cell(x[:, cut:], state, **{k: v[:, cut:] for k, v in options.items()})
    torch.testing.assert_close(torch.cat([first, second], 1), whole, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(last, end, rtol=1e-9, atol=1e-12)


@EVERY
def test_one_token_at_a_time_equals_one_run(name):
    cell, x = made(name), tokens()
    whole, _ = cell(x)
    state = None
    for t in range(T):
        y, state = cell(x[:, t : t + 1], state)
        torch.testing.assert_close(y[:, 0], whole[:, t], rtol=1e-9, atol=1e-12)


@EVERY
@pytest.mark.parametrize("changed", [1, 18])
def test_later_tokens_change_nothing_earlier(name, changed):
    cell, x = made(name), tokens()
    other = x.clone()
    other[:, changed:] += 1
    for run in (cell.forward, cell.reference):
        before, after = run(x)[0], run(other)[0]
        torch.testing.assert_close(before[:, :changed], after[:, :changed], rtol=1e-12, atol=1e-14)
        assert not torch.isclose(before[:, -1], after[:, -1]).all()
    assert torch.equal(cell.reference(x)[0][:, :changed], cell.reference(other)[0][:, :changed])


@EVERY
def test_time_and_its_scale_cancel(name):
    cell, x = made(name), tokens()
    scaled = torch.full((B, T, U), 1.3).double()
    twice = torch.full((B, T), 1.3).double()
    plain = cell(x)[0]
    torch.testing.assert_close(cell(x, tau_scale_BTU=torch.ones_like(scaled))[0], plain)
    assert not torch.allclose(cell(x, dt_BT=twice)[0], plain)
    assert not torch.allclose(cell(x, tau_scale_BTU=scaled)[0], plain)
    if cell.state_width == U:  # otherwise the scale leaves hidden units alone
        torch.testing.assert_close(cell(x, dt_BT=twice, tau_scale_BTU=scaled)[0], plain)


@EVERY
def test_time_constants_are_positive_and_detached(name):
    cell, x = made(name), tokens()
    tau = cell.time_constants(x)
    assert tau.shape == (B, T, U) and not tau.requires_grad
    assert (tau > 0).all() and tau.isfinite().all()
    assert tau.std() > 0


def test_time_constants_are_those_of_the_formulas():
    soft = torch.nn.functional.softplus
    x = tokens(2)
    cell = LTCScan(F, U).double()
    phi = soft(x @ cell.read.weight[:U].T + cell.read.bias[:U])
    torch.testing.assert_close(cell.time_constants(x), 1 / (1 / soft(cell.tau_raw) + phi).detach())

    cell = CfC(F, U, backbone_layers=0).double()
    z = torch.cat([x, torch.stack([torch.zeros(B, U), cell(x)[0][:, 0]], 1)], -1)
    speed = z @ cell.weights[0][2 * U : 3 * U].T + cell.biases[0][2 * U : 3 * U]
    torch.testing.assert_close(cell.time_constants(x), 1 / speed.abs().detach())

    cell = LTC(F, U).double()
    conductance = soft(cell.leak_raw)
    for synapses, v in ((cell.sensory, x[:, 0]), (cell.recurrent, torch.zeros(B, U).double())):
        conductance = conductance + (synapses.w * synapses.opening(v)).sum(-1)
    expected = soft(cell.capacity_raw) / conductance
    torch.testing.assert_close(cell.time_constants(x)[:, 0], expected.detach())


@EVERY
def test_recurrence_stays_in_float32_under_autocast(name):
    cell, x = made(name).float(), tokens().float()
    exact, _ = cell(x)
    with torch.autocast("cpu", torch.bfloat16):
        outputs, state = cell(x)
        assert cell.time_constants(x).isfinite().all()
        gradients = torch.autograd.grad(outputs.sum(), list(cell.parameters()))
    assert outputs.dtype == state.dtype == torch.float32
    torch.testing.assert_close(outputs, exact, rtol=0.1, atol=0.05)
    assert all(gradient.dtype == torch.float32 for gradient in gradients)
    assert cell(x.bfloat16().float(), state)[1].dtype == torch.float32


@pytest.mark.parametrize("mode", ["default", "no_gate", "pure"])
def test_cfc_step_is_the_published_formula(mode):
    torch.manual_seed(0)
    cell = CfC(F, U, mode, backbone_units=8)
    x, h, dt = torch.randn(B, F), torch.randn(B, U), torch.rand(B, 1)
    z = torch.cat([x, h], 1) @ cell.weights[0].T + cell.biases[0]
    z = 1.7159 * torch.tanh(0.666 * z)
    sums = [
        z @ w.T + b for w, b in zip(cell.weights[1].split(U), cell.biases[1].split(U), strict=True)
    ]
    if mode == "pure":
        decay = torch.exp(-dt * (cell.w_tau.abs() + sums[0].abs()))
        expected = -cell.amplitude * decay * sums[0] + cell.amplitude
    else:
        f, g = torch.tanh(sums[0]), torch.tanh(sums[1])
        k = torch.sigmoid(sums[2] * dt + sums[3])
        expected = f + k * g if mode == "no_gate" else f * (1 - k) + k * g
    torch.testing.assert_close(cell.step(x, h, dt), expected)


def test_ltc_scan_never_exceeds_one():
    cell = made("ltc_scan")
    x = 1e3 * torch.randn(B, 200, F).double()
    dt = 10 ** (4 * torch.rand(B, 200).double() - 2)
    start = torch.where(torch.rand(B, U) < 0.5, -1.0, 1.0).double()
    outputs, _ = cell(x, start, dt_BT=dt)
    assert outputs.abs().max() <= 1


def test_ltc_scan_is_the_exact_solution_of_its_equation():
    cell, x = made("ltc_scan"), tokens(1)
    phi, target, rho = cell._parts(x[:, 0])  # type: ignore[operator]
    h, pieces = torch.full((B, U), 0.3).double(), 4_000
    expected, _ = cell(x, h)
    for _ in range(pieces):
        h = h + (phi * target - rho * h) / pieces
    torch.testing.assert_close(h, expected[:, 0], rtol=0, atol=2e-3)
    many = cell(
        x.expand(B, 50, F), torch.full((B, U), 0.3).double(), dt_BT=x.new_full((B, 50), 0.02)
    )
    torch.testing.assert_close(many[0][:, -1], expected[:, 0], rtol=1e-12, atol=1e-12)


def test_ltc_starts_in_the_published_ranges():
    cell = LTC(4, 5)
    soft = torch.nn.functional.softplus
    for synapses in (cell.sensory, cell.recurrent):
        for values, low, high in (
            (soft(synapses.w_raw), 0.001, 1),
            (synapses.sigma, 3, 8),
            (synapses.mu, 0.3, 0.8),
        ):
            assert low - 1e-4 <= values.min() and values.max() <= high + 1e-4
        assert set(synapses.reversal.flatten().tolist()) == {-1.0, 1.0}
    assert soft(cell.capacity_raw).min() >= 0.4 and soft(cell.capacity_raw).max() <= 0.6


def test_ltc_moves_towards_rest_without_open_synapses():
    cell = LTC(1, 4)
    with torch.no_grad():
        for synapses in (cell.sensory, cell.recurrent):
            synapses.w_raw.fill_(-50)
    outputs, _ = cell(torch.zeros(1, 600, 1), dt_BT=torch.full((1, 600), 20.0))
    torch.testing.assert_close(outputs[0, -1], cell.rest.detach(), rtol=1e-3, atol=1e-4)


@EVERY
def test_every_parameter_is_trained_from_the_start(name):
    torch.manual_seed(0)
    backbone, options = CELLS[name]
    cell = make_liquid(backbone, F, U, **options)
    outputs, _ = cell(tokens().float())
    outputs.square().sum().backward()
    for key, parameter in cell.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, key


# Said by torch about what its compiler does itself.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_compiled_cell_has_the_same_gradients():
    cell = made("cfc without backbone")
    found = []
    for run in (cell, torch.compile(cell, backend="aot_eager", fullgraph=True)):
        x = tokens(2).requires_grad_()
        loss = run(x)[0].square().sum()
        found.append(torch.autograd.grad(loss, (x, *cell.parameters())))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("name", ["cfc", "ltc", "ncp", "ltc_scan"])
def test_per_sample_gradients_by_vmap(name):
    cell, x = made(name), tokens(5)
    parameters = dict(cell.named_parameters())

    def loss(parameters, x):
        return functional_call(cell, parameters, (x[None],))[0].square().sum()

    by_sample = vmap(grad(loss), (None, 0))(parameters, x)
    for row in range(B):
        for key, expected in grad(loss)(parameters, x[row]).items():
            torch.testing.assert_close(by_sample[key][row], expected)


def test_unknown_names_are_refused():
    assert set(BACKBONES) == {"cfc", "ltc", "ncp", "ltc_scan"}
    with pytest.raises(HoldfastError, match="no liquid backbone 'gru'"):
        make_liquid("gru", 2, 3)
    with pytest.raises(HoldfastError, match="no mode 'gated'"):
        make_liquid("cfc", 2, 3, mode="gated")
