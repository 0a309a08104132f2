from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from holdfast_models.xec.evaluation.saliency import face_weights, saliency
from holdfast_models.xec.geometry.layout import FACES, SENSORS, sensors_of


class Linear(nn.Module):
    """Energy from the photons of one face, twice as much from the times of another."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SENSORS, 2))
        self.drop = nn.Dropout(0.9)
        with torch.no_grad():
            self.weight[torch.tensor(sensors_of("us")), 0] = 1.0
            self.weight[torch.tensor(sensors_of("top")), 1] = -2.0

    def forward(self, x_BSC: Tensor, more: Tensor) -> dict[str, Tensor]:
        total_B = (self.drop(x_BSC) * self.weight).sum((1, 2))
        log_var_B = total_B * 1e6  # must not be looked at
        u_B3 = torch.stack((x_BSC[:, 0, 0], x_BSC[:, 0, 1], total_B), dim=-1)
        return {"energy": torch.stack((total_B, log_var_B), dim=-1), "uvwFI": u_B3}


def test_shares_are_those_of_the_gradients() -> None:
    model = Linear().train()
    found = saliency(model, torch.randn(3, SENSORS, 2), torch.ones(1))
    assert found.outputs == ("energy", "uvwFI u", "uvwFI v", "uvwFI w")
    assert found.shares_KFC.shape == (4, 6, 2)
    torch.testing.assert_close(found.shares_KFC.sum((1, 2)), torch.ones(4))
    energy = found.shares_KFC[0]
    assert float(energy[FACES.index("us"), 0]) == pytest.approx(1 / 3, rel=1e-4)
    assert float(energy[FACES.index("top"), 1]) == pytest.approx(2 / 3, rel=1e-4)
    assert float(found.shares_KFC[2, 0, 1]) == pytest.approx(1.0)
    assert model.training and model.weight.grad is None


def test_weights_of_faces_are_norms_by_token() -> None:
    first = nn.Linear(6 * 4, 8)
    head = nn.Sequential(nn.Flatten(), first)
    with torch.no_grad():
        first.weight.fill_(1.0)
        first.weight[:, 4:8] = 3.0
    (values,) = face_weights({"energy": head}, FACES).values()
    assert values[1] / values[0] == pytest.approx(3.0) and sum(values) == pytest.approx(6.0)
