"""Losses against plain formulas; weights, balance, and means over nothing."""

import math
from typing import Literal

import pytest
import torch
from torch import Tensor

from holdfast_models.xec.geometry import layout
from holdfast_models.xec.geometry.coordinates import direction_of
from holdfast_models.xec.losses import (
    Balance,
    HiddenLosses,
    elementwise,
    intensity_weights,
    one_minus_cosine,
)
from holdfast_models.xec.settings import (
    HiddenLossSettings,
    IntensitySettings,
    LossName,
    NormalizationSettings,
    NphoWeightSettings,
    TimeLossSettings,
)

PRED, TARGET, BETA = 0.9, 0.4, 0.2
D = PRED - TARGET
EXPECTED: dict[LossName, float] = {
    "smooth_l1": D - BETA / 2,
    "huber": D - BETA / 2,
    "l1": D,
    "mse": D**2,
    "l2": D**2,
    "relative_l1": D / TARGET,
    "relative_smooth_l1": (D - BETA / 2) / TARGET,
    "relative_mse": D**2 / TARGET**2,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_formulas(name: LossName) -> None:
    found = elementwise(name, torch.tensor([[PRED]]), torch.tensor([[TARGET]]), BETA)
    assert found.item() == pytest.approx(EXPECTED[name], rel=1e-5)


def test_smooth_l1_is_torchs_own_below_and_above_beta() -> None:
    pred, target = torch.randn(64, 3), torch.randn(64, 3)
    own = elementwise("smooth_l1", pred, target, 0.7)
    theirs = torch.nn.functional.smooth_l1_loss(pred, target, beta=0.7, reduction="none")
    assert torch.allclose(own, theirs)


def test_an_unknown_loss_is_an_error() -> None:
    with pytest.raises(ValueError, match="cosine"):
        elementwise("cosine", torch.zeros(1, 1), torch.zeros(1, 1), 1.0)


def test_gaussian_nll_weighs_by_its_own_variance_and_clamps_it() -> None:
    log_variance = torch.tensor([[0.5, 50.0]], requires_grad=True)
    mean = torch.tensor([[1.0, 1.0]])
    found = elementwise("gaussian_nll", torch.cat((mean, log_variance), 1), torch.zeros(1, 2), 1.0)
    first = math.exp(0.5) ** 0.5 * 0.5 * (0.5 + 1 / math.exp(0.5))
    assert found[0, 0].item() == pytest.approx(first, rel=1e-5)
    assert found[0, 1].item() == pytest.approx(math.exp(5) * 0.5 * (10 + math.exp(-10)), rel=1e-4)


def test_a_target_of_nothing_has_a_finite_relative_error() -> None:
    found = elementwise("relative_l1", torch.ones(1, 1), torch.zeros(1, 1), 1.0)
    assert found.item() == pytest.approx(1000)


def test_directions() -> None:
    angles = torch.tensor([[90.0, 0.0], [90.0, 90.0], [0.0, 0.0]])
    expected = torch.tensor([[-1.0, 0, 0], [0, 1, 0], [0, 0, 1]])
    assert torch.allclose(direction_of(angles), expected, atol=1e-6)
    assert torch.allclose(one_minus_cosine(expected, expected.roll(1, 0)), torch.ones(3), atol=1e-6)


def test_balance_is_the_formula_and_learns() -> None:
    balance = Balance(("a", "b"))
    with torch.no_grad():
        balance.s_N.copy_(torch.tensor([0.0, 1.0]))
    total = balance({"a": torch.tensor(2.0), "b": torch.tensor(3.0)})
    assert total.item() == pytest.approx(1.0 + 0.5 * math.exp(-1) * 3 + 0.5)
    total.backward()
    assert balance.s_N.grad is not None and bool((balance.s_N.grad != 0).all())


def _events(count: int = 3) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x_BSC = torch.rand(count, layout.SENSORS, 2)
    pred_BSC = torch.rand(count, layout.SENSORS, 2)
    hidden_BS = torch.rand(count, layout.SENSORS) < 0.3
    time_valid_BS = torch.rand(count, layout.SENSORS) < 0.2
    npho_BS = torch.rand(count, layout.SENSORS) * 1000
    return pred_BSC, x_BSC, hidden_BS, time_valid_BS, npho_BS


def test_the_loss_of_hidden_sensors_is_a_sum_of_means_over_faces() -> None:
    """17.16: each channel of each face by its own count."""
    events = _events()
    pred_BSC, x_BSC, hidden_BS, time_valid_BS, _ = events
    plain = TimeLossSettings(use_npho_weight=False, weight=0.5)
    losses = HiddenLosses(
        HiddenLossSettings(fn="l1", time=plain), ("npho", "time"), NormalizationSettings()
    )
    found = losses(*events)
    expected = {"npho": 0.0, "time": 0.0}
    for face in layout.FACES:
        own = torch.from_numpy(layout.sensors_of(face).copy())
        for channel, name in enumerate(expected):
            counted = hidden_BS[:, own]
            if name == "time":
                counted = counted & time_valid_BS[:, own]
            error = (pred_BSC - x_BSC)[:, own, channel].abs()
            expected[name] += error[counted].mean().item()
    assert found.faces["npho"].sum().item() == pytest.approx(expected["npho"], rel=1e-5)
    assert found.faces["time"].sum().item() == pytest.approx(expected["time"], rel=1e-5)
    total = expected["npho"] + 0.5 * expected["time"]
    assert found.total.item() == pytest.approx(total, rel=1e-5)


def test_nothing_hidden_is_a_loss_of_zero_with_a_gradient_of_zero() -> None:
    pred_BSC, x_BSC, hidden_BS, time_valid_BS, npho_BS = _events()
    pred_BSC.requires_grad_()
    losses = HiddenLosses(HiddenLossSettings(), ("npho", "time"), NormalizationSettings())
    found = losses(pred_BSC, x_BSC, torch.zeros_like(hidden_BS), time_valid_BS, npho_BS)
    found.total.backward()
    assert found.total.item() == 0
    assert pred_BSC.grad is not None and not pred_BSC.grad.any()


def test_an_error_in_spreads_is_least_at_the_mean_of_the_photons() -> None:
    """In the root of photons the same loss is least at the square of the mean root."""
    rules = NormalizationSettings(npho_scheme="sqrt")
    npho_BS = torch.zeros(1, layout.SENSORS)
    npho_BS[:, ::2] = 16.0
    x_BSC = torch.stack((npho_BS / 1000, npho_BS), -1).sqrt()
    every_BS = torch.ones_like(npho_BS, dtype=torch.bool)
    counts = torch.arange(1.0, 16.0)

    def least(unit: Literal["scaled", "spread"]) -> float:
        settings = HiddenLossSettings(fn="mse", npho_unit=unit)
        losses = HiddenLosses(settings, ("npho",), rules)
        slopes = []
        for count in counts:
            pred_BSC = (count / 1000).sqrt().expand(1, layout.SENSORS, 1).clone().requires_grad_()
            losses(pred_BSC, x_BSC, every_BS, every_BS, npho_BS).total.backward()
            assert pred_BSC.grad is not None
            slopes.append(pred_BSC.grad[:, : 46 * 44].sum().abs())
        return float(counts[torch.stack(slopes).argmin()])

    assert least("spread") == 8.0
    assert least("scaled") == 4.0


def test_bright_sensors_weigh_more_where_that_is_wanted() -> None:
    pred_BSC, x_BSC, hidden_BS, time_valid_BS, _ = _events(1)
    npho_BS = torch.full((1, layout.SENSORS), 10.0)
    npho_BS[0, 7] = 1e6
    hidden_BS[:] = True
    x_BSC[:] = 0
    pred_BSC[:] = 0
    pred_BSC[0, 7] = 1
    settings = HiddenLossSettings(fn="l1", npho_loss_weight=NphoWeightSettings(enabled=True))
    plain = HiddenLosses(HiddenLossSettings(fn="l1"), ("npho",), NormalizationSettings())
    weighted = HiddenLosses(settings, ("npho",), NormalizationSettings())
    arguments = (pred_BSC[..., :1], x_BSC, hidden_BS, time_valid_BS, npho_BS)
    assert plain(*arguments).total.item() == pytest.approx(1 / 4092, rel=1e-3)
    share = 1000 / (1000 + 4091 * math.sqrt(11))
    assert weighted(*arguments).total.item() == pytest.approx(share, rel=1e-2)


@pytest.mark.parametrize("target", ["uniform", "sqrt"])
def test_rare_totals_of_light_count_more(target: str) -> None:
    npho_BS = torch.ones(100, 10)
    npho_BS[:10] *= 5
    settings = IntensitySettings(enabled=True, nbins=2, target=target)  # type: ignore[arg-type]
    weight_B = intensity_weights(npho_BS, settings)
    assert weight_B.mean().item() == pytest.approx(1)
    ratio = 9 if target == "uniform" else 3
    assert (weight_B[0] / weight_B[-1]).item() == pytest.approx(ratio, rel=1e-4)
