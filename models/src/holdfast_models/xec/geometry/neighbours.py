"""Who is next to whom: hexagonal links, steps on grids, nearest sensors in space."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from . import layout
from .positions import positions

ABSENT = -1
SLOTS = (
    "self", "same row z-", "same row z+", "inner row z-", "inner row z+",
    "outer row z-", "outer row z+",
)  # fmt: skip

_PITCH, _TOLERANCE = 6.12, 0.05  # cm

Table = NDArray[np.int64]


@cache
def hexagonal_links() -> Table:
    """The neighbours of the 73 nodes of a hexagonal face by slot, 73 x 7.

    By distance, not by "even row, odd row": the lengths of the rows do not alternate.
    """
    rows = np.repeat(np.arange(len(layout.HEX_ROWS)), layout.HEX_ROWS)
    z = positions()[layout.hexagonal("top"), 2]
    step = rows[None, :] - rows[:, None]
    along = z[None, :] - z[:, None]
    wanted = [(0, 0.0), (0, -_PITCH), (0, _PITCH)]
    wanted += [(row, sign * _PITCH / 2) for row in (-1, 1) for sign in (-1, 1)]
    table = np.full((len(rows), len(SLOTS)), ABSENT, dtype=np.int64)
    for slot, (row, distance) in enumerate(wanted):
        node, other = np.nonzero((step == row) & (np.abs(along - distance) < _TOLERANCE))
        table[node, slot] = other
    return _locked(table)


@cache
def within_hops(hops: int) -> Table:
    """The sensors of the same face within so many steps, without itself; absent: -1.

    A step on a rectangular image leads to one of eight cells, on a hexagonal face along a link,
    on the outer face to a sensor that touches it in the fine image, also at a corner.
    """
    near = [{sensor} for sensor in range(layout.SENSORS)]
    links = _touching()
    for _ in range(hops):
        near = [set().union(found, *(links[one] for one in found)) for found in near]
    found = [sorted(ids - {sensor}) for sensor, ids in enumerate(near)]
    table = np.full((layout.SENSORS, max(map(len, found))), ABSENT, dtype=np.int64)
    for sensor, ids in enumerate(found):
        table[sensor, : len(ids)] = ids
    return _locked(table)


@cache
def nearest(count: int) -> Table:
    """The nearest other sensors in space, on any face, nearest first."""
    found = np.empty((layout.SENSORS, count), dtype=np.int64)
    where = positions()
    for first in range(0, layout.SENSORS, 512):
        some = where[first : first + 512]
        distance = ((some[:, None] - where[None]) ** 2).sum(-1)
        distance[np.arange(len(some)), first + np.arange(len(some))] = np.inf
        found[first : first + 512] = np.argsort(distance, axis=1, kind="stable")[:, :count]
    return _locked(found)


@cache
def _touching() -> list[set[int]]:
    """One step away, for each sensor."""
    links: list[set[int]] = [set() for _ in range(layout.SENSORS)]

    def link(some: layout.Ids, others: layout.Ids) -> None:
        for one, other in zip(some.ravel().tolist(), others.ravel().tolist(), strict=True):
            if one != other:
                links[one].add(other)
                links[other].add(one)

    for face in ("inner", "us", "ds", "outer"):
        image = layout.IMAGES[face]()
        link(image[1:], image[:-1])
        link(image[:, 1:], image[:, :-1])
        link(image[1:, 1:], image[:-1, :-1])
        link(image[1:, :-1], image[:-1, 1:])
    table = hexagonal_links()
    for face in ("top", "bottom"):
        ids = layout.hexagonal(face)
        for slot in range(1, len(SLOTS)):
            nodes = np.flatnonzero(table[:, slot] != ABSENT)
            link(ids[nodes], ids[table[nodes, slot]])
    return links


def _locked(table: Table) -> Table:
    table.setflags(write=False)
    return table
