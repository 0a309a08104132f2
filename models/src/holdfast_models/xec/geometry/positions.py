"""Where each sensor is, which way it looks, and the coordinates of the detector.

Lengths in cm. The axis of the cylinder is z; azimuth is measured from the negative x axis.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from . import layout

R_INNER, R_OUTER = 64.97, 106.27  # of the sensor surfaces; w is measured from the first
PHI_END, Z_INNER, Z_SLOPE = 62.76, 33.5, 0.3497  # where the xenon ends

SIPM_AREA, PMT_AREA = 1.392, 16.6  # cm2
SIPM_CHIP, SIPM_GAP = 0.59, 0.05  # four square chips make a SiPM

_SIDE_NORMAL = (0.330, 0.944)  # of the upstream and downstream faces: along the radius, along z

Floats = NDArray[np.float64]


@cache
def positions() -> Floats:
    """Centre of each sensor, 4760 x 3."""
    r, phi, z = _cylindrical()
    return _locked(np.stack((-r * np.cos(phi), r * np.sin(phi), z), axis=1))


@cache
def normals() -> Floats:
    """Unit vectors into the xenon, 4760 x 3."""
    r, phi, _ = _cylindrical()
    x, y, _ = positions().T
    zero = np.zeros_like(phi)
    outwards = np.stack((x / r, y / r, zero), axis=1)
    along_phi = np.stack((np.sin(phi), np.cos(phi), zero), axis=1)
    radial, axial = _SIDE_NORMAL
    sides = {sign: radial * outwards + (0, 0, sign * axial) for sign in (1, -1)}
    found = np.empty((layout.SENSORS, 3))
    for face, vectors in {
        "inner": outwards, "outer": -outwards, "top": -along_phi, "bottom": along_phi,
        "us": sides[1], "ds": sides[-1],
    }.items():  # fmt: skip
        own = layout.sensors_of(face)
        found[own] = vectors[own]
    return _locked(found / np.linalg.norm(found, axis=1, keepdims=True))


@cache
def areas() -> Floats:
    """Active area of each sensor in cm2: SiPMs on the inner face, PMTs elsewhere."""
    return _locked(np.where(is_sipm(), SIPM_AREA, PMT_AREA))


def is_sipm() -> NDArray[np.bool_]:
    """Whether a sensor is a SiPM."""
    return layout.face_of_sensor() == layout.FACES.index("inner")


def uvw_of(xyz: NDArray[np.floating]) -> Floats:
    """(u, v, w) of Cartesian coordinates."""
    x, y, z = np.moveaxis(np.asarray(xyz, dtype=np.float64), -1, 0)
    return np.stack((z, R_INNER * np.arctan2(y, -x), np.hypot(x, y) - R_INNER), axis=-1)


def _cylindrical() -> tuple[Floats, Floats, Floats]:
    """Radius, azimuth in radians and z of each sensor."""
    r, phi, z = (np.full(layout.SENSORS, np.nan) for _ in range(3))

    def place(ids: layout.Ids, radius: object, azimuth: object, height: object) -> None:
        for into, values in ((r, radius), (phi, azimuth), (z, height)):
            into[ids] = np.broadcast_to(np.asarray(values, dtype=np.float64), ids.shape)

    i, j = np.indices((93, 44))
    place(layout.inner(), R_INNER, 62.08515 - 1.3496771 * i, -32.4601 + 1.509772 * j)
    i, j = np.indices((24, 9))
    place(layout.outer_coarse().T, R_OUTER, 60.145 - 5.23 * i, -41.424 + 10.356 * j)
    # After the coarse ones: twelve of them take their place in the dense patch.
    i, j = np.indices((6, 5))
    place(layout.outer_dense().T, R_OUTER, 8.71667 - 3.486667 * i, -12.4 + 6.2 * j)
    i, j = np.indices((24, 6))
    for ids, sign in ((layout.sides("us"), -1), (layout.sides("ds"), 1)):
        place(ids, 69.53 + 6.684 * j, 60.145 - 5.23 * i, sign * (35.1547 + 2.3369 * j))
    rows = np.concatenate([np.full(length, i) for i, length in enumerate(layout.HEX_ROWS)])
    steps = np.concatenate([np.arange(n) - (n - 1) / 2 for n in layout.HEX_ROWS])
    for face, sign in (("top", 1), ("bottom", -1)):
        place(layout.hexagonal(face), 68.27 + 6.91 * rows, sign * PHI_END, 6.12 * steps)
    return r, np.radians(phi), z


def _locked(values: Floats) -> Floats:
    values.setflags(write=False)
    return values
