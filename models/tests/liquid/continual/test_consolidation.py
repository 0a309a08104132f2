"""Consolidation: the proximal step, its limits, and what is saved of it."""

import io

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast import HoldfastError
from holdfast_models.liquid.continual.consolidation import Consolidation


def make(strength: float = 10.0, **options) -> tuple[nn.Linear, Consolidation, dict[str, Tensor]]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    fisher = {name: torch.rand_like(p) for name, p in model.named_parameters()}
    fisher["weight"][0] = 0.0
    return model, Consolidation(model, strength, **options), fisher


def move(model: nn.Module) -> dict[str, Tensor]:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter)
    return {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("lr", [0.01, torch.tensor(0.01)])
def test_the_step_is_the_proximal_formula(lr) -> None:
    model, consolidation, fisher = make()
    consolidation.task_ends(fisher)
    anchor = {name: p.detach().clone() for name, p in model.named_parameters()}
    moved = move(model)
    consolidation.step(lr)
    for name, parameter in model.named_parameters():
        weight = 0.01 * 10.0 * fisher[name]
        expected = (moved[name] + weight * anchor[name]) / (1 + weight)
        torch.testing.assert_close(parameter.detach(), expected)
    assert torch.equal(model.weight[0], moved["weight"][0]), "what no task needs is free"


@pytest.mark.parametrize("strength", [1e6, 1e20, 1e38])
def test_it_cannot_diverge(strength: float) -> None:
    """Its gradient form would, at lr x strength x Fisher above 2."""
    model, consolidation, fisher = make(strength)
    consolidation.task_ends({name: 1e3 * value for name, value in fisher.items()})
    anchor = {name: p.detach().clone() for name, p in model.named_parameters()}
    move(model)
    before = consolidation.penalty()
    for _ in range(5):
        consolidation.step(1.0)
    assert all(p.isfinite().all() for p in model.parameters())
    torch.testing.assert_close(model.bias.detach(), anchor["bias"])
    assert consolidation.penalty() <= before


def test_the_penalty_is_apart_and_half_the_weighted_square() -> None:
    model, consolidation, fisher = make()
    assert consolidation.penalty() == 0
    consolidation.task_ends(fisher)
    assert consolidation.penalty() == 0
    anchor = {name: p.detach().clone() for name, p in model.named_parameters()}
    moved = move(model)
    expected = sum((fisher[n] * (moved[n] - anchor[n]).square()).sum() for n in fisher) * 5.0
    torch.testing.assert_close(consolidation.penalty(), expected)
    assert not consolidation.penalty().requires_grad


def test_before_the_first_task_ends_nothing_is_held() -> None:
    model, consolidation, _ = make()
    moved = move(model)
    consolidation.step(1.0)
    assert torch.equal(model.weight, moved["weight"])
    assert consolidation.protection("weight").eq(1).all()


@pytest.mark.parametrize("allowed", [False, torch.tensor(False)])
def test_a_skipped_step_moves_nothing(allowed) -> None:
    model, consolidation, fisher = make()
    consolidation.task_ends(fisher)
    moved = move(model)
    consolidation.step(1.0, allowed)
    assert all(torch.equal(p, moved[name]) for name, p in model.named_parameters())
    consolidation.step(1.0, torch.tensor(True))
    assert not torch.equal(model.weight, moved["weight"])


def test_earlier_tasks_fade_and_the_anchor_moves_on() -> None:
    model, consolidation, fisher = make(decay=0.9)
    consolidation.task_ends(fisher)
    moved = move(model)
    consolidation.task_ends(fisher)
    torch.testing.assert_close(consolidation.fisher[0], 1.9 * fisher["weight"])
    assert torch.equal(consolidation.anchor[0], moved["weight"])
    assert consolidation.tasks == 2


def test_refreshed_estimates_of_a_task_are_averaged_with_the_last() -> None:
    _, consolidation, fisher = make(decay=0.5)
    consolidation.refresh({name: 4 * value for name, value in fisher.items()})
    assert not consolidation.fisher[0].any(), "a task in training is not held yet"
    consolidation.task_ends(fisher)
    torch.testing.assert_close(consolidation.fisher[0], 2.5 * fisher["weight"])
    consolidation.task_ends(fisher)
    torch.testing.assert_close(consolidation.fisher[0], 2.25 * fisher["weight"])


def test_normalised_every_task_has_mean_1() -> None:
    _, consolidation, fisher = make(normalise=True)
    consolidation.task_ends({name: 1e-7 * value for name, value in fisher.items()})
    values = torch.cat([value.flatten() for value in consolidation.fisher])
    assert values.mean().item() == pytest.approx(1.0, rel=1e-5)


def test_plasticity_is_protected_by_fisher() -> None:
    _, consolidation, fisher = make(strength=1000.0)
    consolidation.task_ends(fisher)
    expected = 1 / (1 + 0.01 * 1000 * fisher["weight"])
    torch.testing.assert_close(consolidation.protection("weight"), expected)


def test_a_step_does_not_read_the_device() -> None:
    class NoHostRead(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert func is not torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    _, consolidation, fisher = make()
    consolidation.task_ends(fisher)
    with NoHostRead():
        consolidation.step(0.1, torch.tensor(True))
        consolidation.penalty()


def test_its_state_round_trips_bit_for_bit() -> None:
    model, consolidation, fisher = make()
    consolidation.task_ends(fisher)
    consolidation.refresh({name: 2 * value for name, value in fisher.items()})
    file = io.BytesIO()
    torch.save(consolidation.state_dict(), file)
    file.seek(0)
    again = Consolidation(model, 10.0)
    again.load_state_dict(torch.load(file, weights_only=True))
    moved = move(model)
    found = []
    for each in (consolidation, again):
        model.load_state_dict(moved)
        each.step(0.1)
        each.task_ends(fisher)
        found.append((model.weight.detach().clone(), each.fisher[0], each.anchor[1]))
    assert all(torch.equal(left, right) for left, right in zip(*found, strict=True))
    assert again.tasks == consolidation.tasks == 2
    empty = Consolidation(model)
    empty.load_state_dict(Consolidation(model).state_dict())
    assert empty.tasks == 0


def test_a_state_of_another_model_is_one_line() -> None:
    _, consolidation, fisher = make()
    consolidation.task_ends(fisher)
    with pytest.raises(HoldfastError, match="do not fit"):
        Consolidation(nn.Linear(5, 3)).load_state_dict(consolidation.state_dict())
