"""What is clipped is measured before, in whatever order the script names its parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from holdfast.guard.clip_order import ClipOrder

from .conftest import MakeEngine


@pytest.mark.parametrize("device_path", [False, True])
def test_the_norm_is_the_one_from_before_clipping(
    make_engine: MakeEngine, device_path: bool
) -> None:
    engine = make_engine(device_path=device_path, explain=False)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1), nn.Linear(1, 1))
    model[3].requires_grad_(False)
    biases = [model[0].bias, model[2].bias]
    weights = [model[0].weight, model[2].weight]
    optimizer = torch.optim.SGD([{"params": biases}, {"params": weights}], lr=1e-3)
    for step in range(30):
        optimizer.zero_grad()
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
        (model(x) - 3).square().mean().backward()
        if step == 20:
            model[2].bias.grad.fill_(torch.nan)  # type: ignore[union-attr]
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
    engine.close()
    rows = engine.memory.rows()  # type: ignore[attr-defined]
    good = rows["step"] != 20
    assert (rows["grad_norm"][good] > 0.1).all()
    # After clipping all of them would be.
    assert rows["grad_bad"][20] == 1 and rows["grad_layer"][20] == 1
    assert rows["skipped"].sum() == 1


def test_others_are_left_out_while_they_have_no_gradient() -> None:
    first, second, frozen = (nn.Parameter(torch.zeros(1)) for _ in range(3))
    known = [[second, first]]
    order = ClipOrder(lambda: known)
    assert [id(one) for one in order.of([first, frozen, second])] == [id(second), id(first)]
    frozen.grad = torch.zeros(1)
    assert len(order.of([first, frozen, second])) == 3
    frozen.grad = None
    assert len(order.of([first, frozen, second])) == 2
    known[:] = [[first, frozen, second]]
    order.forget()
    assert len(order.of([first, frozen, second])) == 3
    assert len(order.of([frozen])) == 1
