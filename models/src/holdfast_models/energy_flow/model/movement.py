"""How flows move: displacement, exits at the two faces, reflection at the side walls.

N flows; positions are normalised, [-1, 1] on each axis.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["INSIDE", "Z0", "ZD", "Moved", "move"]

INSIDE, Z0, ZD = 0, 1, 2
"""Where a flow left the box: nowhere, at the face z = 0, at the face z = depth."""


class Moved(NamedTuple):
    """What a step did to the places of flows.

    Attributes:
        p_N3: new positions, always inside the box.
        exit_N: the face that a flow reached in this step, int64: ``INSIDE``, ``Z0`` or ``ZD``.
        distance_N: length of the way from the old position to the new one; no gradient.
    """

    p_N3: Tensor
    exit_N: Tensor
    distance_N: Tensor


def move(
    p_N3: Tensor, delta_N3: Tensor, noise_N3: Tensor | None, *, reflect: bool, alive_N: Tensor
) -> Moved:
    """Moves living flows by one step; the others stay, and leave by no face.

    Args:
        p_N3: positions before the step.
        delta_N3: displacement with drift.
        noise_N3: exploration noise in normalised units; None in evaluation.
        reflect: flows are reflected at the side walls; else they stop there.
        alive_N: which flows move, bool.
    """
    q_N3 = p_N3 + delta_N3
    if noise_N3 is not None:
        q_N3 = q_N3 + noise_N3
    q_N3 = q_N3.to(p_N3.dtype)
    side_N2, z_N1 = q_N3.split((2, 1), dim=-1)
    # Faces first, and on z as it is: a flow may pass a side wall and a face in one step.
    face_N = (z_N1 <= -1) * Z0 + (z_N1 >= 1) * ZD
    if reflect:
        low_N2, high_N2 = -2 - side_N2, 2 - side_N2
        side_N2 = torch.where(side_N2 < -1, low_N2, torch.where(side_N2 > 1, high_N2, side_N2))
    # The clamp of x and y is a guard: a bounded step is back inside after one reflection.
    q_N3 = torch.cat((side_N2, z_N1), dim=-1).clamp(-1, 1)
    new_N3 = torch.where(alive_N.unsqueeze(-1), q_N3, p_N3)
    return Moved(
        p_N3=new_N3,
        exit_N=torch.where(alive_N, face_N.squeeze(-1), INSIDE),
        distance_N=torch.linalg.vector_norm((new_N3 - p_N3).detach(), dim=-1),
    )
