"""How each class of optimizers is updated: what its group says, its state, what is called with it.

One table for Adam, AdamW and SGD, in the forms that torch has of them (``prepared_update``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...torch_version import was_read


class Group(NamedTuple):
    """What one group of parameters is updated by."""

    call: Call
    own: list[Tensor]
    """All of its parameters."""
    positions: Sequence[int]
    """Of those that have gradients."""
    parameters: list[Tensor]
    """Those."""
    lists: Sequence[list[Tensor]]
    """Of its state, in the order of ``OptimizerCalls.state``."""
    options: tuple[Any, ...]
    """What ``OptimizerCalls.options`` has found."""
    named: dict[str, Any]
    """Arguments that stay."""


Call = Callable[[Group, list[Tensor], float, Tensor | None, Tensor | None, Tensor | None], None]
"""Group, gradients, learning rate, the scale that they carry, where it says not to step, and by how
much the step is then counted."""


class OptimizerCalls(NamedTuple):
    """How one class of optimizers is called."""

    options: Callable[[dict[str, Any]], tuple[Any, ...]]
    """Everything in a group that decides about the arithmetic, but for the learning rate."""
    state: Callable[[dict[str, Any]], Sequence[str]]
    """The names of the state of each parameter."""
    named: Callable[[dict[str, Any]], dict[str, Any]]
    calls: dict[str, Call]
    """By form."""


def _adam_state(group: dict[str, Any]) -> Sequence[str]:
    most = ("max_exp_avg_sq",) if group["amsgrad"] else ()
    return ("step", "exp_avg", "exp_avg_sq", *most)


def _adam_named(group: dict[str, Any]) -> dict[str, Any]:
    beta1, beta2 = group["betas"]
    same = ("amsgrad", "weight_decay", "eps", "maximize")
    return {"beta1": beta1, "beta2": beta2} | {name: group[name] for name in same}


def _fused_adam(
    group: Group,
    grads: list[Tensor],
    lr: float,
    scale: Tensor | None,
    found: Tensor | None,
    more: Tensor | None,
) -> None:
    steps, averages, squares, *most = group.lists
    # Torch counts up before, and down by the flag after: of whole numbers that is the same. As a
    # list: a single tensor would be read on the host.
    counted = 1
    if found is not None:
        counted = [torch.rsub(found, 1) if more is None else more] * len(steps)
    torch._foreach_add_(steps, counted)
    kernel = torch._fused_adamw_ if group.options[-1] else torch._fused_adam_
    kernel(
        *(group.parameters, grads, averages, squares, most[0] if most else [], steps),
        lr=lr,
        grad_scale=scale,
        found_inf=found,
        **group.named,
    )


def _adam_by(function: Callable[..., None]) -> Call:
    def call(
        group: Group,
        grads: list[Tensor],
        lr: float,
        scale: Tensor | None,
        found: Tensor | None,
        _: Tensor | None,
    ) -> None:
        steps, averages, squares, *most = group.lists
        function(
            *(group.parameters, grads, averages, squares, most[0] if most else [], steps),
            *(scale, found),
            has_complex=False,
            lr=lr,
            capturable=False,
            differentiable=False,
            decoupled_weight_decay=group.options[-1],
            **group.named,
        )

    return call


def _sgd_state(group: dict[str, Any]) -> Sequence[str]:
    return ("momentum_buffer",) if group["momentum"] != 0 else ()


def _sgd_named(group: dict[str, Any]) -> dict[str, Any]:
    same = ("weight_decay", "momentum", "dampening", "nesterov", "maximize")
    return {name: group[name] for name in same}


def _fused_sgd(
    group: Group,
    grads: list[Tensor],
    lr: float,
    scale: Tensor | None,
    found: Tensor | None,
    _: Tensor | None,
) -> None:
    torch._fused_sgd_(
        *(group.parameters, grads, group.lists[0] if group.lists else []),
        lr=lr,
        is_first_step=False,
        grad_scale=scale,
        found_inf=found,
        **group.named,
    )


def _sgd_by(function: Callable[..., None], *, listed: bool) -> Call:
    """By a function of torch; ``listed``: whether that calls kernels for lists, as is done here.

    On a CPU such a kernel is a loop over tensors that calls the same as torch's loop in Python.
    Where only one of them is left, the order of both is the same, too.
    """

    def call(
        group: Group,
        grads: list[Tensor],
        lr: float,
        scale: Tensor | None,
        found: Tensor | None,
        _: Tensor | None,
    ) -> None:
        decay, momentum, dampening, nesterov, maximize = group.options[len(_FORM) :]
        parameters, several = group.parameters, maximize or decay != 0 or momentum != 0
        if scale is not None or found is not None or (several and not listed):
            buffers = group.lists[0] if group.lists else [None] * len(grads)
            given = parameters, grads, buffers, scale, found
            function(*given, lr=lr, has_sparse_grad=False, **group.named)
            return
        by: list[Tensor] | tuple[Tensor, ...] = grads
        if maximize:
            by = torch._foreach_neg(grads)
        if decay != 0 and maximize:
            torch._foreach_add_(by, parameters, alpha=decay)
        elif decay != 0:
            by = torch._foreach_add(grads, parameters, alpha=decay)
        if momentum != 0:
            buffers = group.lists[0]
            torch._foreach_mul_(buffers, momentum)
            torch._foreach_add_(buffers, by, alpha=1 - dampening)
            if nesterov:
                torch._foreach_add_(by, buffers, alpha=momentum)
            else:
                by = buffers
        torch._foreach_add_(parameters, by, alpha=-lr)

    return call


_FORM = ("fused", "foreach", "differentiable")
FUSED, FOREACH, SINGLE = "fused", "foreach", "single"


def _kinds() -> dict[type[Optimizer], OptimizerCalls]:
    from torch.optim.adam import _multi_tensor_adam, _single_tensor_adam
    from torch.optim.sgd import _multi_tensor_sgd, _single_tensor_sgd

    of_adam = OptimizerCalls(
        operator.itemgetter(
            *(*_FORM, "capturable", "betas", "amsgrad", "weight_decay", "eps", "maximize"),
            "decoupled_weight_decay",
        ),
        _adam_state,
        _adam_named,
        {
            FUSED: _fused_adam,
            FOREACH: _adam_by(_multi_tensor_adam),
            SINGLE: _adam_by(_single_tensor_adam),
        },
    )
    of_sgd = OptimizerCalls(
        operator.itemgetter(
            *(*_FORM, "weight_decay", "momentum", "dampening", "nesterov", "maximize")
        ),
        _sgd_state,
        _sgd_named,
        {
            FUSED: _fused_sgd,
            FOREACH: _sgd_by(_multi_tensor_sgd, listed=True),
            SINGLE: _sgd_by(_single_tensor_sgd, listed=False),
        },
    )
    return {torch.optim.Adam: of_adam, torch.optim.AdamW: of_adam, torch.optim.SGD: of_sgd}


KINDS = _kinds() if was_read() else {}


def form_of(group: dict[str, Any], device: torch.device) -> str:
    """Which of its forms torch takes; empty where that is not known."""
    if group["fused"]:
        return FUSED
    if device.type != "cpu":
        return ""
    return FOREACH if group["foreach"] else SINGLE
