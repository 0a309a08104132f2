from __future__ import annotations

import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.xec.model.masking import valid_of
from holdfast_models.xec.model.regressor import Regressor
from holdfast_models.xec.settings import RegressorSettings, TaskSettings, TasksSettings

ON = TaskSettings(enabled=True)
NLL = TaskSettings(enabled=True, loss_fn="gaussian_nll")


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


def test_heads_compute_in_full_precision_under_autocast(make_events):
    head = regressor(energy=ON).heads["energy"]
    tokens_BTD = torch.randn(64, 6, 64).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = head(tokens_BTD)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, head(tokens_BTD.float()), rtol=0, atol=0)
