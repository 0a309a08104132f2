from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from holdfast_models.energy_flow.model.lattice import Core
from holdfast_models.energy_flow.model.settings import (
    CarrierSettings,
    ConvergenceSettings,
    FlowSettings,
    LatticeSettings,
    ModelSettings,
)


class LivingMemory(TorchDispatchMode):
    """Remembers the storages that operations within it make, without keeping them alive."""

    def __init__(self) -> None:
        super().__init__()
        self._made: list[StorageWeakRef] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {one.untyped_storage()._cdata for one in _tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for leaf in _tensors(result):
            if leaf.untyped_storage()._cdata not in given:
                self._made.append(StorageWeakRef(leaf.untyped_storage()))
        return result

    @property
    def bytes(self) -> int:
        """Of the storages that still exist."""
        sizes: dict[int, int] = {}
        for one in self._made:
            found = torch.UntypedStorage._new_with_weak_ptr(one.cdata)
            if found is not None:
                sizes[one.cdata] = found.nbytes()
        return sum(sizes.values())


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


@pytest.fixture
def living_memory() -> LivingMemory:
    """What the operations within it leave behind: before a step nothing, so after it nothing."""
    return LivingMemory()


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
