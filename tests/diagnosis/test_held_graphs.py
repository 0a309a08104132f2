"""What graphs of past steps hold when memory runs out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from holdfast.diagnosis.memory.graphs import now
from holdfast.diagnosis.memory.held_graphs import PastGraphs, largest
from holdfast.diagnosis.memory.value_sizes import Timeline

torch._dynamo.graph_break()  # imports for seconds, as the first step of any optimizer does
WIDTH, ROWS, STEPS = 64, 32, 4
KEPT = 4 * ROWS * WIDTH
"""Bytes of one activation."""


def train(keep: str, model: Any, *, free: bool = False) -> tuple[BaseException, Timeline]:
    """Three whole steps, then out of memory in the fourth."""
    timeline, losses, total = Timeline(), list[Tensor](), torch.zeros(())
    try:
        for step in range(STEPS):
            loss = model(torch.randn(ROWS, WIDTH)).square().mean()
            if step == STEPS - 1:
                raise torch.OutOfMemoryError("no more")
            loss.backward(retain_graph=not free)
            if keep == "list":
                losses.append(loss)
            elif keep == "sum":
                total = total + loss
            elif keep == "numbers":
                losses.append(loss.detach())
            timeline.ends(step, now())
        raise AssertionError("it has died before")
    except torch.OutOfMemoryError as error:
        return error, timeline


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Sigmoid())


@pytest.mark.parametrize(("keep", "name"), [("list", "losses"), ("sum", "total")])
def test_the_variable_is_named_with_what_it_holds(keep: str, name: str) -> None:
    found = largest(*train(keep, net()))
    assert isinstance(found, PastGraphs) and found.held.path == name
    # Of three steps: what Tanh and Sigmoid gave, the batch, and small ones.
    assert 3 * 3 * KEPT <= found.bytes <= 3 * 5 * KEPT
    assert found.age == 3
    record = found.record(in_use=KEPT)
    assert record.killed and record.held == found.bytes and record.name == name
    assert record.line and record.file.endswith("test_held_graphs.py")


@pytest.mark.parametrize(("keep", "free"), [("numbers", True), ("list", True), ("", True)])
def test_numbers_and_freed_graphs_hold_nothing(keep: str, free: bool) -> None:
    found = largest(*train(keep, net(), free=free))
    assert found is None or found.bytes < KEPT


def test_nothing_is_computed_again() -> None:
    """A checkpointed block would run its forward pass once more to say what it keeps."""
    calls: list[int] = []
    block = net()

    def counted(x: Tensor) -> Tensor:
        calls.append(1)
        return block(x)

    def model(x: Tensor) -> Tensor:
        return checkpoint(counted, x.requires_grad_(), use_reentrant=False)

    died, timeline = train("list", model)
    before = [one.detach().clone() for one in block.parameters()]
    largest(died, timeline)
    assert all(torch.equal(a, b) for a, b in zip(before, block.parameters(), strict=True))
    assert largest(RuntimeError("without a traceback"), timeline) is None
