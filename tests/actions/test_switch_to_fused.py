"""The form of an optimizer: what is switched on a CPU computes the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from holdfast.actions.switch_to_fused import (
    BY_FOREACH,
    SAME_BITS,
    begin_foreach,
    end_foreach,
    reason_not_foreach,
    reason_not_fused,
    to_foreach,
)

Kind = type[torch.optim.Optimizer]
FORMS: list[tuple[Kind, dict[str, Any]]] = [
    *((kind, {}) for kind in SAME_BITS),
    (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    (torch.optim.AdamW, {"maximize": True}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.5}),
    (torch.optim.Adagrad, {"lr_decay": 0.01, "weight_decay": 0.1}),
    (torch.optim.RMSprop, {"centered": True, "momentum": 0.9}),
]


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(6, 5), (5,), (3, 6), (3,), (33,)]
    return [nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in shapes]


def draw(own: list[nn.Parameter], step: int) -> list[Tensor]:
    """Gradients of very different sizes."""
    generator = torch.Generator().manual_seed(step)
    for p in own:
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype) * 10 ** (step % 7 - 4)
    return [p.grad for p in own if p.grad is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("kind", "options"), FORMS)
def test_all_tensors_at_once_gives_the_same_bits(
    kind: Kind, options: dict[str, Any], dtype: torch.dtype
) -> None:
    both = []
    for switch in (False, True):
        own = parameters(dtype)
        optimizer = kind(own, lr=0.01, **options)  # type: ignore[call-arg]
        for step in range(40):
            grads = draw(own, step)
            if switch and step == 3:  # amid a run: the state is kept
                assert to_foreach(optimizer, grads)
            by_foreach = begin_foreach(optimizer) if switch and step >= 3 else []
            optimizer.step()
            end_foreach(by_foreach)
        assert optimizer.param_groups[0]["foreach"] is None
        assert optimizer.state_dict()["param_groups"][0]["foreach"] is None
        both.append(own)
    assert all(torch.equal(*pair) for pair in zip(*both, strict=True))


@pytest.mark.parametrize(
    ("kind", "options", "dtype", "why"),
    [
        (torch.optim.NAdam, {}, torch.float32, "other bits"),
        (torch.optim.Adam, {"foreach": False}, torch.float32, "the script chose"),
        (torch.optim.Adam, {"fused": True}, torch.float32, "the script chose"),
        (torch.optim.Adam, {"capturable": True}, torch.float32, "capturable"),
        (torch.optim.AdamW, {"lr": torch.tensor(0.01)}, torch.float32, "a tensor"),
        (torch.optim.AdamW, {}, torch.bfloat16, "uncommon"),
        (torch.optim.AdamW, {}, torch.complex64, "uncommon"),
    ],
)
def test_some_stay_as_they_are(
    kind: Kind, options: dict[str, Any], dtype: torch.dtype, why: str
) -> None:
    own = parameters(dtype)
    optimizer = kind(own, **options)
    grads = draw(own, 0)
    assert why in reason_not_foreach(optimizer, grads)
    assert not to_foreach(optimizer, grads)


def test_a_step_with_hooks_of_the_script_is_not_said_to_run_by_foreach() -> None:
    """Torch runs it with its own loop, in whose place nothing is put."""
    own = parameters()
    optimizer = torch.optim.Adam(own)
    assert reason_not_foreach(optimizer, draw(own, 0)) == ""
    handle = optimizer.register_step_post_hook(lambda *_: None)
    assert "hooks of the script" in reason_not_foreach(optimizer, draw(own, 0))
    handle.remove()
    assert reason_not_foreach(optimizer, draw(own, 0)) == ""


def test_a_group_that_comes_later_may_end_it() -> None:
    own = parameters()
    optimizer = torch.optim.Adam(own)
    assert to_foreach(optimizer, draw(own, 0))
    assert not to_foreach(optimizer, draw(own, 0))  # it does already
    assert BY_FOREACH in vars(optimizer)
    more = parameters(torch.bfloat16)
    optimizer.add_param_group({"params": more})
    assert not to_foreach(optimizer, [*draw(own, 0), *draw(more, 0)])
    assert BY_FOREACH not in vars(optimizer)


def test_a_form_that_the_script_chooses_later_is_left_to_it() -> None:
    own = parameters()
    optimizer = torch.optim.Adam(own)
    assert to_foreach(optimizer, draw(own, 0))
    optimizer.param_groups[0]["foreach"] = False
    assert not begin_foreach(optimizer)
    assert optimizer.param_groups[0]["foreach"] is False


def test_large_ones_and_few_ones_stay() -> None:
    large = [nn.Parameter(torch.zeros(300, 300)) for _ in range(5)]
    few = parameters()[:2]
    for own in (large, few):
        grads = draw(own, 0)
        assert "not be faster" in reason_not_foreach(torch.optim.Adam(own), grads)


def test_a_sparse_gradient_keeps_the_loop() -> None:
    table = nn.Embedding(9, 4, sparse=True)
    rest = parameters()
    grads = draw(rest, 0)
    table(torch.tensor([1, 2])).sum().backward()
    assert table.weight.grad is not None
    optimizer = torch.optim.SGD([*rest, table.weight], lr=0.1)
    assert "sparse" in reason_not_foreach(optimizer, [*grads, table.weight.grad])


def test_what_says_no_to_a_fused_kernel_is_named() -> None:
    own = parameters()
    assert "fused=False" in reason_not_fused(torch.optim.Adam(own, fused=False), draw(own, 0))
    assert "no fused form" in reason_not_fused(torch.optim.RMSprop(own), draw(own, 0))
