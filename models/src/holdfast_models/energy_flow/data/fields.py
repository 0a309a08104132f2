"""Pairs of fields: a medium now and a little later, made from a seed; nothing is downloaded.

A field is a number in every cell of a square. Its embedding is the field itself, row by row, over
its side, so that a cell of size one adds 1/side to the length. What happens is local, the same
everywhere and not linear:

* ``transport``: every value travels along x, as many times three cells as it is large, to the left
  where it is negative. This is the inviscid Burgers equation ``u_t + (u^2/2)_x = 0``: fronts
  steepen and become shocks. Four points per cell, Godunov's scheme; what reaches a wall is gone.
  Fields are sums of 5 x 5 sine waves, 0.5 in the root mean square.
* ``maps``: a lattice of coupled sine maps, one step. Every cell answers ``sin(pi f)``, which rises
  and falls, and gives 40 % of the answer to its four neighbours; outside there is nothing. Fields
  are independent numbers from -1 to 1.
* ``rounds``: three such steps, ``sin(3 f)``, of which four fifths go to the neighbours. What a cell
  becomes depends on cells three steps away, and every step needs the answers of the one before: no
  linear map before and after one response can do it. Flows have to see the field around them
  (``model.flows.coupling``) and to take several steps (``model.flows.steps``).

Shapes: N fields, H and W their sides, E = H * W, K waves per axis.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

__all__ = [
    "FIELD_TASKS",
    "FieldTask",
    "Fields",
    "answered",
    "make_fields",
    "side_of",
    "transported",
]

FieldTask = Literal["transport", "maps", "rounds"]

FIELD_TASKS: tuple[FieldTask, ...] = get_args(FieldTask)
SMALLEST_SIDE = 4
WAY = 3.0
"""Cells that a value of one travels."""

SHARE = 0.4
"""What a cell gives to its four neighbours."""

ROUNDS = 3
ROUND_GAIN, ROUND_SHARE = 3.0, 0.8

_WAVES = 5  # per axis
_RMS, _MOST = 0.5, 1.5  # of a field that is transported; the bound is met by 3 values in 1000
_FINE = 4  # points per cell
_TOGETHER = 32  # fields
_COURANT = 0.9  # part of a point that the quickest value travels in a step


class Fields(NamedTuple):
    """Two tables of equal shape, row by row a pair, float32."""

    x_NE: Tensor
    y_NE: Tensor


def side_of(width: int) -> int | None:
    """The side of the square with so many cells; None: there is none, or it is too small."""
    side = math.isqrt(width)
    return side if side * side == width and side >= SMALLEST_SIDE else None


def make_fields(count: int, seed: int, task: FieldTask, side: int) -> Fields:
    """Draw fields and let them develop; the first ones do not depend on ``count``."""
    drawn = np.random.Generator(np.random.Philox(key=seed))
    if task != "transport":
        before_NHW = torch.from_numpy(drawn.uniform(-1.0, 1.0, (count, side, side))).float()
        after_NHW = answered(before_NHW) if task == "maps" else before_NHW
        for _ in range(ROUNDS if task == "rounds" else 0):
            after_NHW = answered(after_NHW, ROUND_GAIN, ROUND_SHARE)
    else:
        height_NKK = torch.from_numpy(drawn.standard_normal((count, _WAVES, _WAVES))).float()
        fine_NHW = _waves(height_NKK, side * _FINE)
        before_NHW = _coarse(fine_NHW)
        # Some at a time, which stay in the cache of a core: four times as quick.
        parts = [transported(part, WAY * _FINE) for part in fine_NHW.split(_TOGETHER)]
        after_NHW = _coarse(torch.cat(parts))
    x_NE, y_NE = (field_NHW.flatten(1) / side for field_NHW in (before_NHW, after_NHW))
    return Fields(x_NE, y_NE)


def answered(field_NHW: Tensor, gain: float = math.pi, share: float = SHARE) -> Tensor:
    """One step of the coupled maps."""
    answer_NHW = torch.sin(gain * field_NHW)
    around = answer_NHW.new_tensor([[0, 1, 0], [1, 0, 1], [0, 1, 0]]) / 4
    near_NHW = functional.conv2d(answer_NHW[:, None], around[None, None], padding=1)[:, 0]
    return (1 - share) * answer_NHW + share * near_NHW


def transported(field_NHW: Tensor, way: float) -> Tensor:
    """What becomes of a field whose values travel along x with their own speed.

    Args:
        field_NHW: values up to 1.5.
        way: points that a value of one travels.
    """
    steps = math.ceil(way * _MOST / _COURANT)
    for _ in range(steps):
        left, right = functional.pad(field_NHW, (1, 0)), functional.pad(field_NHW, (0, 1))
        # Between two points: what the left one sends to the right, or the right one to the left.
        flux = torch.maximum(left.clamp(min=0).square(), right.clamp(max=0).square()) / 2
        field_NHW = field_NHW - way / steps * flux.diff(dim=-1)
    return field_NHW


def _waves(height_NKK: Tensor, points: int) -> Tensor:
    """Sine waves that vanish at the walls, long ones higher."""
    k_K = torch.arange(1, _WAVES + 1, dtype=height_NKK.dtype)
    place = (torch.arange(points, dtype=k_K.dtype) + 0.5) / points
    wave_KX = torch.sin(math.pi * k_K[:, None] * place)
    damp_KK = (k_K[:, None].square() + k_K.square()).rsqrt()
    # The mean square of a product of two waves is a quarter.
    damp_KK = damp_KK * _RMS / (damp_KK.square().sum() / 4).sqrt()
    field_NHW = torch.einsum("nkl,ky,lx->nyx", height_NKK * damp_KK, wave_KX, wave_KX)
    return field_NHW.clamp(-_MOST, _MOST)


def _coarse(fine_NHW: Tensor) -> Tensor:
    """Means over the points of a cell."""
    return functional.avg_pool2d(fine_NHW[:, None], _FINE)[:, 0]
