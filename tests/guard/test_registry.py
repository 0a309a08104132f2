from __future__ import annotations

import pytest
import torch
from torch import nn

from holdfast.config import Settings
from holdfast.guard import registry as registry_module
from holdfast.guard.registry import OptimizerRegistry
from holdfast.policy import Policy


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
