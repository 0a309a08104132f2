"""The tank unrolled: all six faces in one picture, every sensor at its place.

The inner face is in the middle, z to the right and v upwards; the sides, the top and the bottom are
folded out around it, so that what is next to its edge lies next to it. The outer face is to the
right, its azimuth at the height it has on the inner one.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import Colormap, Normalize
from matplotlib.patheffects import withStroke

from ...drawing import RED
from ..geometry import layout
from ..geometry.positions import R_INNER, positions, uvw_of
from .drawing import Floats

_DENSE_CELL = (6.2, 3.486667)  # of the outer face, z in cm and azimuth in degrees
_HEX_PITCH, _HEX_ROW = 6.12, 6.91
_SIDE, _END, _OUTER = 37.0, 79.5, 142.0  # where sides, ends and the outer face begin, cm
_LABELS = {
    "inner": (0, 71.3), "us": (-_SIDE - 20, 71.3), "ds": (_SIDE + 20, 71.3),
    "outer": (_OUTER, 71.3), "top": (0, _END + 46), "bottom": (0, -_END - 50),
}  # fmt: skip


def _rectangle(wide: float, degrees: float) -> Floats:
    high = np.radians(degrees) * R_INNER
    return np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * (wide / 2, high / 2)


def _hexagon() -> Floats:
    """Six corners that leave no gap between rows that are shifted by half a pitch."""
    x, y = _HEX_PITCH / 2, _HEX_ROW / 3
    return np.array([(0, 2 * y), (-x, y), (-x, -y), (0, -2 * y), (x, -y), (x, y)])


_FOLDED = {"us": (0, -_SIDE), "ds": (0, _SIDE), "top": (1, _END), "bottom": (1, -_END)}
_OUTLINES = {
    "inner": _rectangle(1.509772, 1.3496771),  # z in cm, azimuth in degrees
    "outer": _rectangle(10.356, 5.23),
    **dict.fromkeys(("us", "ds"), _rectangle(6.684, 5.23)),
    **dict.fromkeys(("top", "bottom"), _hexagon()),
}


class _Tank(NamedTuple):
    polygons: list[Floats]
    centre_S2: Floats


@cache
def _tank() -> _Tank:
    """The outline and the centre of each sensor on the paper, cm."""
    z_S, v_S, w_S = uvw_of(positions()).T
    centre_S2 = np.stack((z_S, v_S), axis=1)
    polygons: list[Floats] = [np.zeros((0, 2))] * layout.SENSORS
    for face in layout.FACES:
        ids = layout.sensors_of(face)
        if face in _FOLDED:
            axis, start = _FOLDED[face]
            centre_S2[ids, axis] = start + np.sign(start) * w_S[ids]
        elif face == "outer":
            centre_S2[ids, 0] += _OUTER
        for one in ids.tolist():
            polygons[one] = _OUTLINES[face] + centre_S2[one]
    for one in layout.outer_dense().ravel().tolist():
        polygons[one] = _rectangle(*_DENSE_CELL) + centre_S2[one]
    return _Tank(polygons, centre_S2)


def draw_tank(
    panel: Axes,
    values_S: Floats,
    *,
    norm: Normalize,
    colours: Colormap | str,
    dead_S: Floats | None = None,
) -> PolyCollection:
    """Colour every sensor by its value; white where it is NaN, a cross where it is dead."""
    tank = _tank()
    cells = PolyCollection(tank.polygons, cmap=colours, norm=norm, linewidths=0)
    cells.set_array(np.ma.masked_invalid(values_S))
    panel.add_collection(cells)
    wide = [one for at, one in enumerate(tank.polygons) if at >= layout.inner().size]
    panel.add_collection(
        PolyCollection(wide, facecolors="none", edgecolors="#b0b0b0", linewidths=0.25)
    )
    for face, (x, y) in _LABELS.items():
        ids = layout.sensors_of(face)
        if face in ("inner", "outer", "us", "ds"):
            corners = np.concatenate([tank.polygons[one] for one in ids.tolist()])
            low, high = corners.min(0), corners.max(0)
            frame = [low, (high[0], low[1]), high, (low[0], high[1]), low]
            panel.plot(*np.array(frame).T, color="black", linewidth=0.7)
        panel.text(x, y, face, ha="center", va="bottom", fontsize=8)
    if dead_S is not None and dead_S.any():
        panel.plot(
            *tank.centre_S2[dead_S.astype(bool)].T, "x", color=RED, markersize=2.6,
            markeredgewidth=0.6, linestyle="none",
        )  # fmt: skip
    panel.set_xlim(-_SIDE - 46, _OUTER + 49)
    panel.set_ylim(-_END - 52, _END + 54)
    panel.set_aspect("equal")
    panel.set_axis_off()
    # A scale: lengths across the faces are those of the detector.
    panel.plot([150, 170], [-100, -100], color="black", linewidth=1.2)
    panel.text(160, -98.5, "20 cm", ha="center", va="bottom", fontsize=7)
    for name, (x, y) in {"z": (20, 0), "v": (0, 20)}.items():
        panel.annotate("", (-78 + x, -100 + y), (-78, -100), arrowprops=dict(arrowstyle="->"))
        panel.text(-78 + 1.15 * x, -100 + 1.15 * y, name, ha="center", va="center", fontsize=8)
    return cells


def mark_point(panel: Axes, uvw: Floats, *, marker: str, colour: str, label: str) -> None:
    """Mark a point in the xenon on every face: where a line at right angles to it would end."""
    u, v, w = (float(one) for one in uvw)
    if not np.isfinite((u, v, w)).all():
        return
    shadows = [(_OUTER + u, v), (-_SIDE - w, v), (_SIDE + w, v), (u, _END + w), (u, -_END - w)]
    look: dict[str, Any] = {
        "marker": marker,
        "linestyle": "none",
        "color": colour,
        "markeredgewidth": 1.3,
    }
    look["path_effects"] = [withStroke(linewidth=3, foreground="white")]
    if marker not in "x+1234":
        look["markerfacecolor"] = "none"
    panel.plot([u], [v], markersize=9, label=label, **look)
    panel.plot(*np.array(shadows).T, markersize=4.5, **look)
