"""Whether a kernel computes on a device what plain torch does, in values and gradients.

A small input goes through the function that would use the kernel, with it and without it. Whoever
fails, or differs by more than rounding, is not used. The kernel is compiled on the way, which is
needed anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..model.linear import linear
from ..model.liquid.cfc import CfC
from ..model.mamba.selective import selective_scan
from ..model.mixing.causal import CausalAttention, KeyValues
from ..model.norms import normed
from ..model.spiking.lif import LIF
from ..scan import scan
from .choice import using

_BATCH, _TOKENS = 3, 70  # more than a piece of the kernels
_LIMITS = (1e-3, 1e-2)  # products in TF32 and single spikes may differ; a wrong kernel does more

Made = tuple[Callable[..., Sequence[Tensor]], list[Tensor]]


def fault(kind: str, device: torch.device, sizes: tuple[Any, ...]) -> str | None:
    """What is wrong with a kernel; None: nothing."""
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            apart = compared(kind, device, sizes)
    except Exception as error:  # whatever it is, there is plain torch
        return f"{type(error).__name__}: {error}"
    for name, limit, far in zip(("values", "gradients"), _LIMITS, apart, strict=True):
        if not far <= limit:
            return f"its {name} are {far:.1e} from those of plain torch"
    return None


def compared(
    kind: str, device: torch.device, sizes: tuple[Any, ...], tokens: int = _TOKENS
) -> tuple[float, float]:
    """How far values and gradients with the kernel are from those without, relative."""
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
        torch.device(device),
    ):
        function, leaves = CASES[kind](tokens, *sizes)
        found = []
        for how in ("off", "always"):
            with using(how):
                values = function(*leaves)
                seeds = [_seed(one) for one in values]
                grads = torch.autograd.grad(values, leaves, seeds)
            found.append([torch.cat([x.detach().flatten() for x in xs]) for xs in (values, grads)])
    plain, fused = found
    return tuple(
        float((own - theirs).norm() / theirs.norm())
        for own, theirs in zip(fused, plain, strict=True)
    )  # type: ignore[return-value]


def _seed(like: Tensor) -> Tensor:
    """A gradient without structure that is the same in both passes."""
    count = torch.arange(like.numel(), dtype=torch.float32)
    return (count * 0.7).sin().view_as(like)


def _leaf(*shape: int, size: float = 1.0) -> Tensor:
    return (size * torch.randn(*shape)).requires_grad_()


def _written(found: list[Tensor], given: Tensor) -> list[Tensor]:
    """Of a kernel for writing only: what stands for a gradient is the same with and without it."""
    return [one + (given - given.detach()).sum() for one in found]


def _scan(tokens: int) -> Made:
    decay = torch.rand(_BATCH, tokens, 20).requires_grad_()
    return lambda a, b, h: [scan(a, b, h)], [decay, _leaf(_BATCH, tokens, 20), _leaf(_BATCH, 20)]


def _lif(tokens: int, reset: str, surrogate: str) -> Made:
    units = LIF(24, reset=reset, surrogate=surrogate, slope=5.0)

    def fired(current: Tensor, start: Tensor) -> list[Tensor]:
        each, constant = units.steps(current), units.constant(current[0], 10)
        carried, end = units.sequence(current, start)
        parts = (*each[:3], *constant[:3], carried.rate, carried.membrane, end)
        return [*parts, constant.near.sum() + 0 * current.sum()]

    return fired, [_leaf(_BATCH, tokens, 24), _leaf(_BATCH, 24)]


def _cfc(tokens: int, units: int, hidden: int) -> Made:
    cell = CfC(units, units, backbone_units=hidden, backbone_layers=1 if hidden else 0)
    leaves = [_leaf(_BATCH, tokens, units), _leaf(_BATCH, units), *cell.parameters()]

    def ran(x: Tensor, h: Tensor, *parameters: Tensor) -> list[Tensor]:
        dt = 1 + 0.5 * torch.arange(tokens).sin().expand(_BATCH, -1)
        return [*cell(x, h), *cell(x, h, dt_BT=dt)]

    return ran, leaves


def _selective(tokens: int, channels: int, states: int) -> Made:
    def ran(x: Tensor, delta: Tensor, b: Tensor, c: Tensor, a: Tensor, h: Tensor) -> list[Tensor]:
        return list(selective_scan(x, 0.1 * delta.exp(), b, c, -a.exp(), h))

    wide, deep = (_BATCH, tokens, channels), (_BATCH, tokens, states)
    shapes = [wide, wide, deep, deep, (channels, states), (_BATCH, channels, states)]
    return ran, [_leaf(*shape, size=0.5) for shape in shapes]


def _attend(tokens: int, channels: int, rope: int) -> Made:
    heads = 2
    past, wide = (_BATCH, heads, tokens, channels), (3, _BATCH, 1, heads * channels)
    keys, values, given = torch.randn(past), torch.randn(past), _leaf(*wide)

    def ran(given: Tensor) -> list[Tensor]:
        found: list[Tensor] = []
        queries, new_keys, new_values = given.unbind()
        for window in (None, 1 + tokens // 2):
            attention = CausalAttention(heads, window, bool(rope))
            cached = attention.with_room(KeyValues(keys, values), 2)
            with torch.no_grad():
                mixed, cached = attention(queries, new_keys, new_values, cached)
                again, _ = attention(queries, new_keys, new_values, cached)
                found += [mixed, again, *cached[:2]]
        return _written(found, given)

    return ran, [given]


def _rows(tokens: int) -> Made:
    x, weight, bias = _leaf(1 + tokens % 8, 2, 300), torch.randn(41, 400), torch.randn(41)

    def ran(x: Tensor) -> list[Tensor]:
        with torch.no_grad():
            found = [linear(x, weight[:, 100:], bias), linear(x, weight[:, :300], None)]
        return _written(found, x)

    return ran, [x]


def _norm(tokens: int) -> Made:
    rows = 1 + tokens % 8
    x, base, layer = _leaf(rows, 2, 300), torch.randn(rows, 2, 300), nn.LayerNorm(300)
    layer.weight = nn.Parameter(torch.randn(300))

    def ran(x: Tensor) -> list[Tensor]:
        with torch.no_grad():
            found = [normed(layer, x), normed(layer, x, gelu=True, base=base, share=0.3)]
        return _written(found, x)

    return ran, [x]


CASES: dict[str, Callable[..., Made]] = {
    "scan": _scan,
    "lif": _lif,
    "cfc": _cfc,
    "selective": _selective,
    "attend": _attend,
    "norm": _norm,
    "rows": _rows,
}
