"""Gradient checkpointing: what is taken, the same gradients, and a model that is still itself."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.errors import SettingsError
from holdfast.training.recompute import keep_activations, recompute


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.dropout = nn.Dropout(0.3)
        self.calls = 0

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        self.calls += 1
        return x + self.dropout(self.mix(x)) * scale


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 6)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, scale=0.5)
        return x


@pytest.fixture
def model() -> Stack:
    torch.manual_seed(0)
    return Stack()


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    torch.manual_seed(7)
    model.zero_grad()
    model(torch.ones(4, 6)).square().sum().backward()
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def calls(model: Any) -> list[int]:
    return [block.calls for block in model.blocks]


def test_the_gradients_are_the_same_to_the_bit_with_dropout(model):
    before, state = gradients(model), list(model.state_dict())
    assert recompute(model, ("blocks.*",)) == ["blocks.0", "blocks.1", "blocks.2"]
    again = gradients(model)
    assert len(again) == 8 and equal(before, again)
    assert calls(model) == [3, 3, 3]  # once before, and forward and backward after
    assert list(model.state_dict()) == state


def test_the_random_numbers_after_a_step_are_the_same(model):
    gradients(model)
    expected = torch.rand(1)
    recompute(model, ("blocks.*",))
    gradients(model)
    assert torch.equal(torch.rand(1), expected)


def test_fewer_activations_are_kept(model):
    def saved() -> int:
        kept: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: kept.append(tensor.numel()) or tensor, lambda tensor: tensor
        ):
            model(torch.ones(4, 6))
        return sum(kept)

    before = saved()
    recompute(model, ("blocks.*",))
    assert saved() < before / 2


def test_a_star_does_not_cross_a_dot_and_the_outermost_is_taken(model):
    assert recompute(model, ("blocks.0", "blocks.*.mix", "blocks.[01].mix")) == [
        "blocks.0",
        "blocks.1.mix",
        "blocks.2.mix",
    ]
    assert equal(gradients(model), gradients(plain_copy(model)))


def plain_copy(model: Stack) -> Stack:
    plain = Stack()
    plain.load_state_dict(model.state_dict())
    return plain


def test_without_gradients_nothing_is_computed_twice(model):
    recompute(model, ("blocks.*",))
    with torch.no_grad():
        model(torch.ones(4, 6))
    assert calls(model) == [1, 1, 1]


def test_it_is_undone(model):
    recompute(model, ("blocks.*",))
    recompute(model, ("blocks.*",))  # twice is as once
    assert keep_activations(model) == ["blocks.0", "blocks.1", "blocks.2"]
    gradients(model)
    assert calls(model) == [1, 1, 1]
    assert not any("forward" in module.__dict__ for module in model.modules())


def test_a_forward_of_somebody_else_stays_in_place(model):
    stem = model.stem
    theirs = lambda x: nn.Linear.forward(stem, x) + 1  # noqa: E731
    stem.forward = theirs
    before = gradients(model)
    recompute(model, ("stem",))
    assert equal(before, gradients(model))
    keep_activations(model)
    assert stem.forward is theirs


def test_copies_and_pickles_are_models_of_their_own(model):
    recompute(model, ("blocks.*",))
    expected = gradients(model)
    written = io.BytesIO()
    torch.save(model, written)
    written.seek(0)
    for other in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(written, weights_only=False),
    ):
        counted, own = calls(model), calls(other)
        assert equal(expected, gradients(other))
        assert calls(model) == counted  # a copy does not call what it was copied from
        assert calls(other) == [n + 2 for n in own]


@pytest.mark.slow
def test_it_goes_through_the_compiler_in_one_graph(model):
    for block in model.blocks:
        block.dropout.p = 0.0
    before = gradients(model)
    recompute(model, ("blocks.*.mix",))
    torch._dynamo.reset()
    model.compile(backend="aot_eager", fullgraph=True)
    after = gradients(model)
    assert before.keys() == after.keys()
    assert all(torch.allclose(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("block.*", r"did you mean 'blocks\.\*'"),
        ("blocks.*.mixx", r"did you mean 'blocks\.\*\.mix'"),
        ("encoder", "there are stem, blocks"),
        ("blocks", r"is a ModuleList, which is never called itself; write 'blocks\.\*'"),
        ("", "there are stem, blocks"),
    ],
)
def test_a_pattern_that_takes_nothing_is_an_error_with_a_next_move(model, pattern, hint):
    with pytest.raises(SettingsError, match=hint):
        recompute(model, ("stem", pattern))
    assert "forward" not in model.stem.__dict__  # nothing is changed half-way
