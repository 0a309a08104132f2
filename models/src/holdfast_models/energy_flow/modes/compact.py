"""Compact mode: flows that have ended leave, and only the others are computed.

B batch, N rows of flows, M rows computed now, C carrier width, L layers.

Every ``compact_every`` steps the living flows are packed to the front, in their order, and as
many rows are kept as the nearest step of a short ladder has, so that few shapes occur. What has
left is set aside and put back in the order of its number at the end.

The host reads how many are alive. Where no flow can have children the number is one step old when
it is read, which is safe since it only falls, and nothing waits. Where flows can have children the
host reads two numbers in each step: waiting for them costs less than computing rows for every
child that might be born.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..model.convergence import EarlyStop
from ..model.ending import Tally, count
from ..model.flows import Flows, blank, join, slots_for_children, take
from ..model.settings import FlowSettings
from ..model.spawn import Placed, children, place_children
from ..model.stepping import FlowStep, LatticePass, Parts, advance, sigma_3

__all__ = ["bucket", "run_steps"]

_LADDER = (64, 32, 16, 12, 8, 6, 4, 3, 2, 1)
"""Rows are kept in these parts of 64ths of all rows there can be."""


def run_steps(parts: Parts, lattice_pass: LatticePass, flows: Flows) -> tuple[Flows, Tally]:
    """Take every step with the rows that live, as ``model.loop.run_steps``; states are not kept."""
    settings = parts.settings
    device, first = flows.p_N3.device, flows.index_N.shape[0]
    slots = slots_for_children(
        lattice_pass.batch, first // lattice_pass.batch, lattice_pass.steps, settings
    )
    total = first + lattice_pass.batch * slots
    tally, early_stop = Tally.zero(device), EarlyStop(settings.convergence, device)
    used_B = torch.zeros(lattice_pass.batch, dtype=torch.long, device=device)
    noise_3 = sigma_3(settings, lattice_pass, device)
    aside: list[Flows] = []
    asked: _Reading | None = None
    for t in range(lattice_pass.steps):
        stopped, leave = early_stop.check(t, tally.done, tally.spawned + first, flows.alive_N.sum())
        if leave:
            break
        before_N3 = flows.p_N3
        flows, step = advance(parts, lattice_pass, noise_3, flows, flows.alive_N & ~stopped, t)
        due = (t + 1) % settings.flows.compact_every == 0
        spawned: Tensor | int = 0
        if slots:
            placed = _place(flows, step, used_B, slots, settings.flows)
            spawned = (placed.used_B - used_B).sum()
            used_B = placed.used_B
            born, living = _Reading(spawned, flows.alive_N.sum()).wait()
            if born or due:
                children_now = _children(flows, before_N3, placed, born, first, t)
                flows, gone = _pack(flows, living, children_now, total)
                aside += gone
        else:
            if asked is not None:
                (living,) = asked.wait()
                flows, gone = _pack(flows, living, None, total)
                aside += gone
            asked = _Reading(flows.alive_N.sum()) if due else None
        tally = count(tally, step, spawned, stopped)
    return _in_order([*aside, _without_state(flows)], total), tally


def bucket(rows: int, total: int) -> int:
    """The least number of rows on the ladder that holds so many, out of ``total``."""
    sizes = [-(-total * part // _LADDER[0]) for part in _LADDER]
    return min(size for size in sizes if size >= rows)


def _place(
    flows: Flows, step: FlowStep, used_B: Tensor, slots: int, settings: FlowSettings
) -> Placed:
    far_N, most = step.distance_N, settings.spawn_most
    count_N = children(far_N, flows.alive_N, settings.spawn_threshold, most)
    return place_children(far_N, count_N, flows.sample_N, used_B, slots=slots, most=most)


def _children(
    flows: Flows, before_N3: Tensor, placed: Placed, born: int, first: int, t: int
) -> Flows | None:
    """The flows born in this step, as many as the host has read there are."""
    if not born:
        return None
    slot_R = _front(placed.born_R, born)
    parent_R = placed.parent_R[slot_R]
    child = take(flows, parent_R)
    return child._replace(
        p_N3=before_N3.index_select(0, parent_R),
        k_N=torch.zeros_like(child.k_N),
        index_N=first + slot_R,
        parent_N=child.index_N,
        born_N=torch.full_like(child.born_N, t),
    )


def _pack(
    flows: Flows, living: int, newborn: Flows | None, total: int
) -> tuple[Flows, list[Flows]]:
    """The living flows and the newborn, on the next step of the ladder; and all the others.

    Args:
        flows: in the order of their numbers within each sample, which is kept.
        living: at most so many are alive.
        newborn: to be appended.
        total: rows there can be at most.
    """
    rows = flows.index_N.shape[0]
    born = 0 if newborn is None else newborn.index_N.shape[0]
    size = bucket(living + born, total)
    if not born and size >= rows:
        return flows, []
    keep = min(size - born, rows)
    order_N = _front(flows.alive_N, rows)
    kept = take(flows, order_N[:keep])
    gone = take(_without_state(flows), order_N[keep:])
    parts = [kept] if newborn is None else [kept, newborn]
    if size > keep + born:
        # All of them are number ``total``, a row that is cut off at the end.
        spare_R = kept.index_N.new_full((size - keep - born,), total)
        parts.append(blank(kept, spare_R))
    return join(parts), [gone]


def _front(first_N: Tensor, rows: int) -> Tensor:
    """Rows where this is true come first, each kind in its order; so many of them."""
    return first_N.logical_not().to(torch.uint8).argsort(stable=True)[:rows]


def _without_state(flows: Flows) -> Flows:
    """States are most of the memory, and nobody needs those of flows that have ended."""
    return flows._replace(h_LNC=flows.h_LNC[:, :, :0])


def _in_order(parts: list[Flows], total: int) -> Flows:
    """All flows by their numbers; rows that nobody took are blank."""
    flows = join(parts)
    index_N = torch.arange(total + 1, device=flows.index_N.device)
    empty = blank(flows, index_N)
    columns = {
        name: getattr(empty, name).index_copy(0, flows.index_N, column)[:total]
        for name, column in flows._asdict().items()
        if name not in ("h_LNC", "index_N")
    }
    return Flows(h_LNC=empty.h_LNC[:, :total], index_N=index_N[:total], **columns)


class _Reading:
    """Whole numbers on their way from the device to the host."""

    def __init__(self, *numbers: Tensor) -> None:
        values = torch.stack(numbers)
        self._copied: torch.cuda.Event | None = None
        self._host = values
        if values.is_cuda:
            self._host = torch.empty(len(numbers), dtype=values.dtype, pin_memory=True)
            self._host.copy_(values, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def wait(self) -> list[int]:
        """The numbers, once all work before them is done."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._host.tolist()
