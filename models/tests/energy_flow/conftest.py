from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from holdfast_models.energy_flow.model.lattice import Core
from holdfast_models.energy_flow.model.settings import (
    CarrierSettings,
    ConvergenceSettings,
    FlowSettings,
    LatticeSettings,
    ModelSettings,
)


@pytest.fixture
def small_settings() -> Callable[..., ModelSettings]:
    """Settings of a small lattice, 6 x 5 x 16, in which children and early stop are off."""

    def make(
        *,
        lattice: dict[str, Any] | None = None,
        carrier: dict[str, Any] | None = None,
        flows: dict[str, Any] | None = None,
        convergence: dict[str, Any] | None = None,
    ) -> ModelSettings:
        sizes: dict[str, Any] = {"width": 6, "height": 5, "depth": 16}
        widths: dict[str, Any] = {"hidden": 12, "neuron_hidden": 8, "neuron_output": 8}
        no_children: dict[str, Any] = {"spawn_most": 0, "mode": "dense"}
        no_stop: dict[str, Any] = {"on": False}
        return ModelSettings(
            lattice=LatticeSettings(**sizes | (lattice or {})),
            carrier=CarrierSettings(**widths | (carrier or {})),
            flows=FlowSettings(**no_children | (flows or {})),
            convergence=ConvergenceSettings(**no_stop | (convergence or {})),
        )

    return make


@pytest.fixture
def busy_core(small_settings: Callable[..., ModelSettings]) -> Callable[..., Core]:
    """A core whose flows go different ways, to both faces or to none: no parameter is at rest."""

    def make(**settings: dict[str, Any]) -> Core:
        slow = {"z_drift": 0.03} | settings.pop("carrier", {})
        with torch.random.fork_rng():
            torch.manual_seed(1)
            core = Core(small_settings(carrier=slow, **settings))
            with torch.no_grad():
                for parameter in core.parameters():
                    parameter += 0.3 * torch.randn_like(parameter)
                core.carrier.move_end.weight.normal_()
                core.carrier.move_end.bias.zero_()
        return core

    return make
