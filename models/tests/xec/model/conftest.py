from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from holdfast_models.xec.data.normalization import Inputs, normalise
from holdfast_models.xec.settings import NormalizationSettings


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def normalization() -> NormalizationSettings:
    return NormalizationSettings()


@pytest.fixture
def make_events(normalization) -> Callable[..., Inputs]:
    """Photons over six decades, a tenth of the sensors dead, times of the bright ones."""

    def make(count: int = 2, *, dead: float = 0.1, seed: int = 1) -> Inputs:
        generator = torch.Generator().manual_seed(seed)

        def uniform() -> torch.Tensor:
            return torch.rand(count, 4760, generator=generator)

        npho_BS = 10 ** (6 * uniform() - 1)
        npho_BS = torch.where(uniform() < dead, 1e10, npho_BS)
        return normalise(npho_BS, 1e-8 * uniform(), normalization)

    return make
