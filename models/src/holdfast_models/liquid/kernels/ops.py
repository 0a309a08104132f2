"""The kernels as operators of torch, so that ``torch.compile`` takes each as one piece.

They have no gradients of their own: the autograd functions that call them do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = [
    "BLOCK",
    "MOST",
    "PIECE",
    "attend",
    "cfc",
    "cfc_backward",
    "fire",
    "fire_backward",
    "norm",
    "rows",
    "scan",
    "selective",
    "selective_backward",
]

BLOCK = 256
"""Spiking units of a program."""

PIECE = 64
"""Tokens of which the selective recurrence keeps one state."""

MOST = 32_768
"""Weights of one gate of a closed-form cell, or to its hidden layer: what a program can look at."""

_SPACE = "holdfast_liquid"
_LIBRARY = torch.library.Library(_SPACE, "DEF")


def _define(name: str, schema: str, kernels: str, fake: Any) -> Any:
    """An operator that calls the function ``name`` of a file of kernels, loaded when it runs."""

    def run(*inputs: Any) -> Any:
        from importlib import import_module

        return getattr(import_module(f".{kernels}", __package__), name)(*inputs)

    _LIBRARY.define(name + schema)
    # The processor only where Triton interprets its kernels, in tests.
    for where in ("CUDA", "CPU"):
        _LIBRARY.impl(name, run, where)
    torch.library.register_fake(f"{_SPACE}::{name}", fake, lib=_LIBRARY)
    return getattr(getattr(torch.ops, _SPACE), name).default


def _fake_scan(decay: Tensor, value: Tensor, initial: Tensor, reverse: bool) -> Tensor:
    return torch.empty_like(value, memory_format=torch.contiguous_format)


scan = _define(
    "scan",
    "(Tensor decay, Tensor value, Tensor initial, bool reverse) -> Tensor",
    "scan_kernels",
    _fake_scan,
)


def _fake_fire(
    current: Tensor,
    start: Tensor | None,
    slope: Tensor,
    steps: int,
    beta: float,
    threshold: float,
    reset: str,
) -> tuple[Tensor, ...]:
    shape = (steps, *current.shape[1:])
    programs = (current[0].numel() + BLOCK - 1) // BLOCK
    every = [current.new_empty(shape) for _ in range(2)]
    means = [current.new_empty(shape[1:]) for _ in range(2)]
    return (*every, *means, current.new_empty(programs))


fire = _define(
    "fire",
    "(Tensor current, Tensor? start, Tensor slope, int steps, float beta, float threshold, "
    "str reset) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "lif_kernels",
    _fake_fire,
)


def _fake_fire_backward(
    membranes: Tensor, start: Tensor | None, slope: Tensor, *rest: Any
) -> tuple[Tensor, Tensor]:
    constant = rest[4]
    return (
        torch.empty_like(membranes[:1] if constant else membranes),
        membranes.new_empty(0) if start is None else torch.empty_like(membranes[0]),
    )


fire_backward = _define(
    "fire_backward",
    "(Tensor membranes, Tensor? start, Tensor slope, Tensor? of_train, Tensor? of_membranes, "
    "Tensor? of_rate, Tensor? of_mean, bool constant, float beta, float threshold, str reset, "
    "str surrogate) -> (Tensor, Tensor)",
    "lif_kernels",
    _fake_fire_backward,
)


def _fake_cfc(z_BTM: Tensor, by_state_MU: Tensor, *rest: Any) -> Tensor:
    return z_BTM.new_empty(z_BTM.shape[0], z_BTM.shape[1], by_state_MU.shape[1])


cfc = _define(
    "cfc",
    "(Tensor z, Tensor by_state, Tensor? later, Tensor? bias, Tensor start, Tensor? time, "
    "float dt) -> Tensor",
    "cfc_kernels",
    _fake_cfc,
)


def _fake_cfc_backward(grads_BTU: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    totals_BTU = torch.empty_like(grads_BTU, memory_format=torch.contiguous_format)
    return totals_BTU, grads_BTU.new_empty(grads_BTU.shape[0], grads_BTU.shape[2])


cfc_backward = _define(
    "cfc_backward",
    "(Tensor grads, Tensor slopes, Tensor by_state, Tensor? later, Tensor? inner) "
    "-> (Tensor, Tensor)",
    "cfc_kernels",
    _fake_cfc_backward,
)


def _fake_selective(
    x_BTD: Tensor, delta_BTD: Tensor, b_BTN: Tensor, c_BTN: Tensor, a_DN: Tensor, h_BDN: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    (batch, tokens, channels), states = x_BTD.shape, a_DN.shape[1]
    pieces = (tokens + PIECE - 1) // PIECE
    return (
        x_BTD.new_empty(batch, tokens, channels),
        x_BTD.new_empty(batch, channels, states),
        x_BTD.new_empty(batch, pieces, channels, states),
    )


selective = _define(
    "selective",
    "(Tensor x, Tensor delta, Tensor b, Tensor c, Tensor a, Tensor h) -> (Tensor, Tensor, Tensor)",
    "selective_kernels",
    _fake_selective,
)


def _fake_selective_backward(
    x: Tensor, delta: Tensor, b: Tensor, c: Tensor, a: Tensor, *rest: Tensor
) -> tuple[Tensor, ...]:
    def like(of: Tensor) -> Tensor:
        return torch.empty_like(of, memory_format=torch.contiguous_format)

    start = x.new_empty(x.shape[0], *a.shape)
    return (*map(like, (x, delta, b, c, a)), start)


selective_backward = _define(
    "selective_backward",
    "(Tensor x, Tensor delta, Tensor b, Tensor c, Tensor a, Tensor kept, Tensor of_y, "
    "Tensor of_end) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    "selective_kernels",
    _fake_selective_backward,
)


def _fake_attend(queries_B1C: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(queries_B1C, memory_format=torch.contiguous_format)


attend = _define(
    "attend",
    "(Tensor queries, Tensor keys, Tensor values, Tensor(a!) cached_keys, Tensor(b!) "
    "cached_values, Tensor count, int window, float base) -> Tensor",
    "attend_kernels",
    _fake_attend,
)


def _fake_rows(x_RK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
    return x_RK.new_empty(x_RK.shape[0], weight_NK.shape[0])


rows = _define(
    "rows", "(Tensor x, Tensor weight, Tensor? bias) -> Tensor", "rows_kernels", _fake_rows
)


def _fake_norm(x_RH: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(x_RH, memory_format=torch.contiguous_format)


norm = _define(
    "norm",
    "(Tensor x, Tensor weight, Tensor bias, Tensor? base, float eps, float share, bool act) "
    "-> Tensor",
    "norm_kernels",
    _fake_norm,
)
