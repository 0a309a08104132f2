"""The kernels as operators of torch, so that ``torch.compile`` takes each as one piece.

They have no gradients of their own: the autograd functions that call them do.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

BLOCK = 256
"""Spiking units of a program."""

PIECE = 64
"""Tokens of which the selective recurrence keeps one state."""

MOST = 32_768
"""Weights of one gate of a closed-form cell, or to its hidden layer: what a program can look at."""

_SPACE = "holdfast_liquid"
_LIBRARY = torch.library.Library(_SPACE, "DEF")


def _operator(schema: str, kernels: str) -> Callable[[Callable[..., Any]], Any]:
    """Makes an operator of a function that says what the results are like.

    It calls the function of the same name in a file of kernels, loaded when it runs.
    """

    def make(fake: Callable[..., Any]) -> Any:
        name = fake.__name__

        def run(*inputs: Any) -> Any:
            return getattr(import_module(f".{kernels}", __package__), name)(*inputs)

        _LIBRARY.define(name + schema)
        # The processor only where Triton interprets its kernels, in tests.
        for where in ("CUDA", "CPU"):
            _LIBRARY.impl(name, run, where)
        torch.library.register_fake(f"{_SPACE}::{name}", fake, lib=_LIBRARY)
        return getattr(getattr(torch.ops, _SPACE), name).default

    return make


def _like(one: Tensor) -> Tensor:
    return torch.empty_like(one, memory_format=torch.contiguous_format)


@_operator("(Tensor decay, Tensor value, Tensor initial, bool reverse) -> Tensor", "scan_kernels")
def scan(decay: Tensor, value: Tensor, initial: Tensor, reverse: bool) -> Tensor:
    """All states of a linear recurrence."""
    return _like(value)


@_operator(
    "(Tensor current, Tensor? start, Tensor slope, int steps, float beta, float threshold, "
    "str reset) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "lif_kernels",
)
def fire(
    current: Tensor, start: Tensor | None, slope: Tensor, steps: int, *how: Any
) -> tuple[Tensor, ...]:
    """Spikes, membranes, their means, and shares of units near the threshold."""
    shape = (steps, *current.shape[1:])
    programs = (current[0].numel() + BLOCK - 1) // BLOCK
    every = [current.new_empty(shape) for _ in range(2)]
    means = [current.new_empty(shape[1:]) for _ in range(2)]
    return (*every, *means, current.new_empty(programs))


@_operator(
    "(Tensor membranes, Tensor? start, Tensor slope, Tensor? of_train, Tensor? of_membranes, "
    "Tensor? of_rate, Tensor? of_mean, bool constant, float beta, float threshold, str reset, "
    "str surrogate) -> (Tensor, Tensor)",
    "lif_kernels",
)
def fire_backward(
    membranes: Tensor, start: Tensor | None, slope: Tensor, *rest: Any
) -> tuple[Tensor, Tensor]:
    """Gradients of current and start."""
    constant = rest[4]
    of_start = membranes.new_empty(0) if start is None else torch.empty_like(membranes[0])
    return torch.empty_like(membranes[:1] if constant else membranes), of_start


@_operator(
    "(Tensor z, Tensor by_state, Tensor? later, Tensor? bias, Tensor start, Tensor? time, "
    "float dt) -> Tensor",
    "cfc_kernels",
)
def cfc(z_BTM: Tensor, by_state_MU: Tensor, *rest: Any) -> Tensor:
    """States of a closed-form cell."""
    return z_BTM.new_empty(z_BTM.shape[0], z_BTM.shape[1], by_state_MU.shape[1])


@_operator(
    "(Tensor grads, Tensor slopes, Tensor by_state, Tensor? later, Tensor? inner) "
    "-> (Tensor, Tensor)",
    "cfc_kernels",
)
def cfc_backward(grads_BTU: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Gradients of all states and of the start."""
    return _like(grads_BTU), grads_BTU.new_empty(grads_BTU.shape[0], grads_BTU.shape[2])


@_operator(
    "(Tensor x, Tensor delta, Tensor b, Tensor c, Tensor a, Tensor h) -> (Tensor, Tensor, Tensor)",
    "selective_kernels",
)
def selective(
    x_BTD: Tensor, delta_BTD: Tensor, b_BTN: Tensor, c_BTN: Tensor, a_DN: Tensor, h_BDN: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, the last state, and a state of every piece."""
    (batch, tokens, channels), states = x_BTD.shape, a_DN.shape[1]
    pieces = (tokens + PIECE - 1) // PIECE
    return (
        x_BTD.new_empty(batch, tokens, channels),
        x_BTD.new_empty(batch, channels, states),
        x_BTD.new_empty(batch, pieces, channels, states),
    )


@_operator(
    "(Tensor x, Tensor delta, Tensor b, Tensor c, Tensor a, Tensor kept, Tensor of_y, "
    "Tensor of_end) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    "selective_kernels",
)
def selective_backward(
    x: Tensor, delta: Tensor, b: Tensor, c: Tensor, a: Tensor, *rest: Tensor
) -> tuple[Tensor, ...]:
    """Gradients of all inputs, that of the first state last."""
    return (*map(_like, (x, delta, b, c, a)), x.new_empty(x.shape[0], *a.shape))


@_operator(
    "(Tensor queries, Tensor keys, Tensor values, Tensor(a!) cached_keys, Tensor(b!) "
    "cached_values, Tensor count, int window, float base) -> Tensor",
    "attend_kernels",
)
def attend(queries_B1C: Tensor, *rest: Any) -> Tensor:
    """What one token of every row takes from a cache that it is written into."""
    return _like(queries_B1C)


@_operator("(Tensor x, Tensor weight, Tensor? bias) -> Tensor", "rows_kernels")
def rows(x_RK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    """A linear layer of few rows."""
    return x_RK.new_empty(x_RK.shape[0], weight_NK.shape[0])


@_operator(
    "(Tensor x, Tensor weight, Tensor bias, Tensor? base, float eps, float share, bool act) "
    "-> Tensor",
    "norm_kernels",
)
def norm(x_RH: Tensor, *rest: Any) -> Tensor:
    """A layer norm of few rows, and what comes behind it."""
    return _like(x_RH)
