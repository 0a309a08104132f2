"""Sensor ids as images: which sensor is in which cell of which face."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray

SENSORS = 4760
FACES = ("inner", "us", "ds", "outer", "top", "bottom")
"""In the order of their codes in files."""

HEX_ROWS = (11, 12, 11, 12, 13, 14)
COARSE_CELL, DENSE_CELL = (5, 3), (3, 2)  # fine cells of a coarse and of a dense sensor
DENSE_CORNER = (15, 30)  # first fine row and column of the dense patch

_FIRST = {"inner": 0, "outer": 4092, "us": 4308, "ds": 4452, "top": 4596, "bottom": 4669}

# One line per phi row, z ascending: 12 of the coarse sensors among the 18 extra ones.
_DENSE = (
    (4185, 4742, 4186, 4743, 4187),
    (4744, 4745, 4746, 4747, 4748),
    (4194, 4749, 4195, 4750, 4196),
    (4203, 4751, 4204, 4752, 4205),
    (4753, 4754, 4755, 4756, 4757),
    (4212, 4758, 4213, 4759, 4214),
)

Ids = NDArray[np.int64]


def inner() -> Ids:
    """93 x 44: phi descending, z ascending."""
    return _block("inner", 93, 44)


def sides(face: str) -> Ids:
    """24 x 6, upstream ("us") or downstream ("ds"): phi descending, radius ascending."""
    return _block(face, 24, 6)


def outer_coarse() -> Ids:
    """9 x 24: z ascending, phi descending; the ids run along z, so the image is a transpose."""
    return np.ascontiguousarray(_block("outer", 24, 9).T)


def outer_dense() -> Ids:
    """5 x 6: z ascending, phi descending; the patch in the middle of the outer face."""
    return np.ascontiguousarray(np.array(_DENSE, dtype=np.int64).T)


def outer_fine() -> Ids:
    """45 x 72: every cell holds the id of the sensor that covers it, coarse or dense."""
    fine = _enlarged(outer_coarse(), COARSE_CELL)
    patch = _enlarged(outer_dense(), DENSE_CELL)
    row, column = DENSE_CORNER
    fine[row : row + patch.shape[0], column : column + patch.shape[1]] = patch
    return fine


def hexagonal(face: str) -> Ids:
    """The 73 ids of the top or the bottom face, row by row."""
    return np.arange(sum(HEX_ROWS), dtype=np.int64) + _FIRST[face]


@cache
def face_of_sensor() -> NDArray[np.int64]:
    """The code of the face of each sensor."""
    codes = np.full(SENSORS, -1, dtype=np.int64)
    for code, name in enumerate(FACES):
        codes[sensors_of(name)] = code
    codes.setflags(write=False)
    return codes


def sensors_of(face: str) -> Ids:
    """The ids of all sensors of a face, ascending."""
    return np.unique(IMAGES[face]())


@cache
def fine_cells() -> NDArray[np.int64]:
    """How many cells of the fine image each sensor covers; 0 away from the outer face."""
    counts = np.bincount(outer_fine().ravel(), minlength=SENSORS)
    counts.setflags(write=False)
    return counts


IMAGES: Mapping[str, Callable[[], Ids]] = {
    "inner": inner,
    "us": partial(sides, "us"),
    "ds": partial(sides, "ds"),
    "outer": outer_fine,
    "outer_coarse": outer_coarse,
    "outer_center": outer_dense,
    "top": partial(hexagonal, "top"),
    "bottom": partial(hexagonal, "bottom"),
}
"""By name: of the faces, and the two that the outer face is made of."""


def _block(face: str, rows: int, columns: int) -> Ids:
    return np.arange(rows * columns, dtype=np.int64).reshape(rows, columns) + _FIRST[face]


def _enlarged(image: Ids, cell: tuple[int, int]) -> Ids:
    return image.repeat(cell[0], axis=0).repeat(cell[1], axis=1)
