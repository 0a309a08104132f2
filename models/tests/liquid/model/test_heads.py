"""The loss of tokens in the head: in parts the same as at once, without all logits in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from holdfast.training import kept_bytes
from holdfast_models.liquid.model import heads
from holdfast_models.liquid.model.heads import TextHead
from holdfast_models.liquid.settings import ModelSettings

TOKENS = 37  # of each of two rows


def head_of(vocabulary: int) -> tuple[TextHead, Tensor, Tensor]:
    torch.manual_seed(0)
    head = TextHead(ModelSettings(hidden_dim=16), vocabulary).eval()
    return head, torch.randn(2, TOKENS, 16), torch.randint(vocabulary, (2, TOKENS))


def passed(head: Any, call: Any, x: Tensor, target: Tensor, smoothing: float) -> list[Tensor]:
    """Loss and hits, and gradients where tokens do not weigh the same."""
    x = x.clone().requires_grad_()
    found = call(x, target, smoothing)
    weights = torch.linspace(0.1, 2.0, TOKENS)
    return [
        found,
        *torch.autograd.grad((found[..., 0] * weights).sum(), [x, *head.parameters()]),
    ]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("precise", [True, False])
def test_parts_are_the_whole(
    smoothing: float, precise: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, x, target = head_of(50)
    exact = passed(head, head.scored, x, target, smoothing)
    with torch.autocast("cpu", torch.bfloat16, enabled=not precise):
        whole = passed(head, head.scored, x, target, smoothing)
        monkeypatch.setattr(heads, "_AT_A_TIME", 50 * 5)  # five tokens, and four at the end
        parts = passed(head, head.scored, x, target, smoothing)
    for own, theirs, true in zip(parts, whole, exact, strict=True):
        assert (own - true).norm() <= 1.2 * (theirs - true).norm() + 1e-5 * true.norm()


def test_it_is_the_loss_of_the_logits() -> None:
    head, x, target = head_of(50)
    loss, right = head.scored(x, target).unbind(-1)
    y = head(x)
    expected = cross_entropy(y.flatten(0, 1), target.flatten(), reduction="none")
    torch.testing.assert_close(loss.flatten(), expected)
    assert torch.equal(right.bool(), y.argmax(-1) == target)
    assert not right.equal(torch.ones_like(right))


def test_the_compiler_takes_parts_without_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    head, x, target = head_of(50)
    monkeypatch.setattr(heads, "_AT_A_TIME", 50 * 20)
    compiled: Any = torch.compile(head.scored, fullgraph=True, backend="aot_eager")
    own, theirs = (passed(head, call, x, target, 0.0) for call in (compiled, head.scored))
    for one, other in zip(own, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_what_is_kept_does_not_grow_with_the_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "_AT_A_TIME", 1 << 10)
    kept = []
    for vocabulary in (300, 3000):
        head, x, target = head_of(vocabulary)
        found = kept_bytes(lambda: [head.scored(x, target)], head.parameters())  # noqa: B023
        kept.append(found)
    assert kept[1] == kept[0]
    monkeypatch.setattr(heads, "_AT_A_TIME", 1 << 30)
    assert kept_bytes(lambda: [head.scored(x, target)], head.parameters()) > 10 * kept[1]
