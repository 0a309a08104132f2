from __future__ import annotations

import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.xec.data.normalization import normalise
from holdfast_models.xec.model.masking import valid_of
from holdfast_models.xec.model.regressor import Regressor
from holdfast_models.xec.settings import (
    NormalizationSettings,
    RegressorSettings,
    TaskSettings,
    TasksSettings,
)

ON = TaskSettings(enabled=True)
NLL = TaskSettings(enabled=True, loss_fn="gaussian_nll")
AGAINST_LIGHT = TaskSettings(
    enabled=True, loss_fn="gaussian_nll", log_transform=True, against_light=True
)


def regressor(**tasks: TaskSettings) -> Regressor:
    return Regressor(RegressorSettings(encoder_dim=64), TasksSettings(**tasks)).eval()


def test_only_enabled_tasks_have_a_head(make_events):
    model = regressor(energy=ON, uvwFI=NLL, n_gamma=ON, angleVec=ON)
    assert set(model.heads) == {"energy", "uvwFI", "n_gamma", "angleVec"}
    inputs = make_events()
    found = model(inputs.x_BSC, valid_BSC=valid_of(inputs))
    shapes = {name: one.shape[1] for name, one in found.items()}
    assert shapes == {"energy": 1, "uvwFI": 6, "n_gamma": 5, "angleVec": 3}
    torch.testing.assert_close(found["angleVec"].norm(dim=-1), torch.ones(2))
    with pytest.raises(HoldfastError, match="no task is enabled"):
        regressor()


def test_outputs_are_in_physical_units_and_scaled_ones_for_the_loss(make_events):
    model = regressor(energy=ON, timing=NLL)
    x_BSC = make_events().x_BSC
    physical, scaled = model(x_BSC), model.forward_scaled(x_BSC)
    torch.testing.assert_close(physical["energy"], 0.0375 + 0.0225 * scaled["energy"])
    torch.testing.assert_close(physical["timing"][:, :1], 1e-9 * scaled["timing"][:, :1])
    sigma = (0.5 * physical["timing"][:, 1:]).exp()
    torch.testing.assert_close(sigma, 1e-9 * (0.5 * scaled["timing"][:, 1:]).exp())


def test_every_parameter_gets_a_gradient(make_events):
    model = regressor(energy=ON, angle=ON)
    inputs = make_events()
    found = model.forward_scaled(inputs.x_BSC, valid_BSC=valid_of(inputs))
    torch.stack([one.square().sum() for one in found.values()]).sum().backward()
    assert [name for name, one in model.named_parameters() if one.grad is None] == []


@pytest.mark.parametrize("scheme", ["sqrt", "log1p"])
def test_an_energy_against_the_light_begins_as_the_sum_of_the_photons(scheme, make_events):
    rules = NormalizationSettings(npho_scheme=scheme)
    tasks = TasksSettings(energy=AGAINST_LIGHT)
    model = Regressor(RegressorSettings(encoder_dim=64), tasks, rules).eval()
    for one in model.heads["energy"].parameters():
        torch.nn.init.zeros_(one)
    npho_BS = make_events().npho_BS.clamp(min=0)
    npho_BS[:, :9] = 1e10  # dead
    inputs = normalise(npho_BS, torch.zeros_like(npho_BS), rules)
    expected = npho_BS[:, 9:].sum(1, keepdim=True) / 11.2e6
    for valid_BSC in (valid_of(inputs), None):
        found_B2 = model(inputs.x_BSC, valid_BSC=valid_BSC)["energy"]
        torch.testing.assert_close(found_B2[:, :1], expected, rtol=1e-4, atol=0)
    assert torch.equal(model.forward_scaled(inputs.x_BSC)["energy"][:, 1:], torch.zeros(2, 1))


def test_heads_compute_in_full_precision_under_autocast(make_events):
    head = regressor(energy=ON).heads["energy"]
    tokens_BTD = torch.randn(64, 6, 64).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = head(tokens_BTD)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, head(tokens_BTD.float()), rtol=0, atol=0)
