"""Children of flows that moved far: how many, and where they are put.

B batch, N flows, M children of a flow in one step at most, R child slots of the whole batch.

Every sample owns the same number of child slots, fixed before the loop, numbered from 0 and used
in that order, each once: a slot is never given back, since what its flow ends with is still
collected. So shapes never change, no sample can take the room of another, and a chunk of whole
samples decides exactly as the whole batch does. Slot ``r`` of sample ``b`` is row
``b * slots + r`` of the R rows.

Dense mode keeps the R rows behind the flows of the first generation, not alive until they are
born. Other modes append the rows that were born. In both a flow keeps its rank among the flows
of its sample, by which equal distances are ordered.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Placed", "children", "place_children"]


class Placed(NamedTuple):
    """Which slots were filled in a step.

    Attributes:
        born_R: a child came into this slot now, bool.
        parent_R: the row of its parent among the N flows, int64; -1 where none was born.
        used_B: slots in use in each sample, int64.
    """

    born_R: Tensor
    parent_R: Tensor
    used_B: Tensor


def children(distance_N: Tensor, alive_N: Tensor, threshold: float, most: int) -> Tensor:
    """How many children each flow would have, int64: ``floor(distance / threshold) - 1``.

    Args:
        distance_N: the way of the step.
        alive_N: flows still alive after it, bool; the others have none.
        threshold: a way up to this has none, a way below twice of it neither.
        most: of one flow in one step.
    """
    wanted_N = ((distance_N / threshold).floor() - 1).clamp(0, most)
    return torch.where(alive_N & (distance_N > threshold), wanted_N, 0.0).long()


def place_children(
    distance_N: Tensor,
    count_N: Tensor,
    sample_N: Tensor,
    used_B: Tensor,
    *,
    slots: int,
    most: int,
) -> Placed:
    """Gives children their slots: in each sample first those of the flow that moved farthest.

    What finds no slot is not born. Children of one flow stand side by side. Nothing is read by
    the host and no shape depends on data.

    Args:
        distance_N: the way of the step.
        count_N: from ``children``.
        sample_N: which sample a flow belongs to, 0 to B - 1.
        used_B: slots already used; zeros before the first step.
        slots: of each sample.
        most: children of one flow at most, the same as for ``children``.
    """
    rows = used_B.shape[0] * slots
    total_B = torch.zeros_like(used_B).index_add(0, sample_N, count_N)
    # Sample after sample, farthest first; stable sorts leave equal ones in their order.
    far_N = distance_N.argsort(descending=True, stable=True)
    order_N = far_N[sample_N[far_N].argsort(stable=True)]
    count_N, sample_N = count_N[order_N], sample_N[order_N]
    before_B = total_B.cumsum(0) - total_B
    first_N = count_N.cumsum(0) - count_N - before_B[sample_N] + used_B[sample_N]
    child_M = torch.arange(most, device=count_N.device)
    slot_NM = first_N.unsqueeze(1) + child_M
    born_NM = (child_M < count_N.unsqueeze(1)) & (slot_NM < slots)
    # All that is not born goes to one row behind the last, which is then cut off.
    row_NM = torch.where(born_NM, sample_N.unsqueeze(1) * slots + slot_NM, rows)
    parent_NM = order_N.unsqueeze(1).expand(-1, most)
    parent_R = torch.full((rows + 1,), -1, device=count_N.device)
    parent_R = parent_R.scatter(0, row_NM.flatten(), parent_NM.flatten())[:rows]
    return Placed(
        born_R=parent_R >= 0,
        parent_R=parent_R,
        used_B=(used_B + total_B).clamp(max=slots),
    )
