from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from holdfast.config import Settings
from holdfast.guard import registry as registry_module
from holdfast.guard.registry import OptimizerRegistry
from holdfast.policy import Policy

from .conftest import MakeEngine


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each search among all live objects."""
    made: list[int] = []
    search = registry_module.live_modules

    def counted() -> set[nn.Module]:
        made.append(1)
        return set(search())

    monkeypatch.setattr(registry_module, "live_modules", counted)
    return made


def test_parameters_of_no_module_are_searched_for_once(searches: list[int]) -> None:
    registry = OptimizerRegistry(Settings(), Policy.of(Settings()))
    loose = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    assert [registry.models_of(loose) for _ in range(3)] == [[], [], []]
    assert len(searches) == 1
    model = nn.Linear(2, 2)
    both = [*loose, *model.parameters()]
    assert registry.models_of(both) == [model], "a new model is found beside them"
    assert registry.models_of(both) == [model] and len(searches) == 2


def test_another_parameter_at_the_address_of_a_loose_one_is_another(searches: list[int]) -> None:
    registry = OptimizerRegistry(Settings(), Policy.of(Settings()))
    loose = nn.Parameter(torch.zeros(2))
    registry.models_of([loose])
    registry._loose[id(loose)] = lambda: None  # type: ignore[assignment]  # it is gone
    registry.models_of([loose])
    assert len(searches) == 2


def test_what_no_module_can_hold_is_not_searched_for(searches: list[int]) -> None:
    registry = OptimizerRegistry(Settings(), Policy.of(Settings()))
    model, temperature = nn.Linear(2, 2), torch.zeros((), requires_grad=True)
    assert registry.models_of([temperature]) == [] and not searches
    assert registry.models_of([temperature, *model.parameters()]) == [model]
    assert len(searches) == 1


def test_models_that_are_known_are_found_without_a_search(searches: list[int]) -> None:
    registry = OptimizerRegistry(Settings(), Policy.of(Settings()))
    model = nn.Linear(2, 2)
    registry.models_of([*model.parameters()])
    searches.clear()
    parameters = [*model.parameters(), nn.Parameter(torch.zeros(2))]
    assert registry.known_models_of(parameters) == [model] and not searches


class Named(nn.Module):
    """Has a hash of its own, which it cannot say while it is being made."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


def test_models_made_under_the_guard_are_found_without_a_search(
    make_engine: MakeEngine, searches: list[int]
) -> None:
    engine = make_engine()
    alone, outer = nn.Linear(2, 2), Named("outer")
    optimizers = [
        torch.optim.SGD(alone.parameters()),
        torch.optim.SGD(outer.inner.parameters()),
        torch.optim.SGD([*alone.parameters(), *outer.inner[0].parameters()]),
    ]
    registry = engine.state.training.registry
    names = [guard.layers for guard in (registry.of(one) for one in optimizers)]
    assert names[0] == ["weight", "bias"]
    assert names[1] == [f"inner.{n}.{part}" for n in (0, 1) for part in ("weight", "bias")]
    assert names[2] == ["weight", "bias", "inner.0.weight", "inner.0.bias"]
    assert not searches and not engine.off


def test_copies_are_searched_for(make_engine: MakeEngine, searches: list[int]) -> None:
    engine = make_engine()
    model = copy.deepcopy(Named("copied"))
    optimizer = torch.optim.SGD(model.parameters())
    layers = engine.state.training.registry.of(optimizer).layers
    assert layers[0] == "inner.0.weight" and len(searches) == 1


def test_a_model_that_was_seen_can_be_freed(make_engine: MakeEngine) -> None:
    registry = make_engine().state.training.registry
    model = nn.Sequential(nn.Linear(2, 2))
    assert len(registry._seen) == 2
    del model
    assert len(registry._seen) == 0


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.again = self.inner
        return self.again(x)


def test_a_module_that_compiled_code_registers_breaks_no_graph(make_engine: MakeEngine) -> None:
    engine = make_engine()
    forward = torch.compile(Keeps().forward, backend="eager", fullgraph=True)
    assert forward(torch.zeros(1, 2)).shape == (1, 2) and not engine.off
