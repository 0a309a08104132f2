"""Points and directions in the detector: lengths in cm, angles in degrees, on any device.

The axis of the cylinder is z; azimuth is measured from the negative x axis. What is given may be an
array of numpy, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .positions import PHI_END, R_INNER, R_OUTER, Z_INNER, Z_SLOPE


def xyz_of(uvw: Any) -> Tensor:
    """Cartesian coordinates of (u, v, w)."""
    u, v, w = torch.as_tensor(uvw).unbind(-1)
    r, phi = R_INNER + w, v / R_INNER
    return torch.stack((-r * phi.cos(), r * phi.sin(), u), dim=-1)


def direction_of(angles: Any) -> Tensor:
    """Unit vectors of (theta, phi)."""
    theta, phi = (torch.as_tensor(angles) * (torch.pi / 180)).unbind(-1)
    sine = theta.sin()
    return torch.stack((-sine * phi.cos(), sine * phi.sin(), theta.cos()), dim=-1)


def angles_of(direction: Any) -> Tensor:
    """(theta, phi) of unit vectors."""
    x, y, z = torch.as_tensor(direction).unbind(-1)
    return torch.stack((z.clamp(-1, 1).acos(), torch.atan2(y, -x)), dim=-1).rad2deg()


def angle_between(some: Tensor, others: Tensor) -> Tensor:
    """Radians between vectors; exact also where they agree, unlike an arc cosine."""
    across = torch.linalg.cross(some, others).norm(dim=-1)
    return torch.atan2(across, (some * others).sum(-1))


def in_xenon(xyz: Any) -> Tensor:
    """Whether a point lies in the liquid xenon."""
    x, y, z = torch.as_tensor(xyz).unbind(-1)
    w = torch.hypot(x, y) - R_INNER
    inside = (w >= 0) & (w <= R_OUTER - R_INNER)
    inside &= torch.atan2(y, -x).rad2deg().abs() <= PHI_END
    return inside & (z.abs() <= Z_INNER + Z_SLOPE * w)
