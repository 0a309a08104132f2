"""The losses of a lane, one curve for each: a GAN has two, and no number is about both.

Which losses a step is about was looked at in some steps (the column ``losses``); the others are
like those between which they lie. A lane of an earlier version says nothing about it: then
each optimizer has a loss of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..records import records_of
from ..records.steps import NamedLosses
from ..run import LaneData, Rows
from ..types import Event, place_words
from . import words
from .columns import column

# Losses of so many steps at most tell how a run began and ended; a guess.
_ENDS = 50
# Losses that a headline names.
_NAMED = 3

# Operations of torch that say what is measured; and some that hide what has made a loss.
_LOSSES = ("Loss", "CrossEntropy", "KlDiv")
_HIDE = ("Compiled", "ToCopy", "AsStrided", "Clone")

Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """How one loss went."""

    name: str
    """What the script calls it, with its lines: ``errG (gan.py:21)``."""
    first: float
    """At first and at last, as medians of so many steps."""
    last: float
    over: int
    parts: int = 1
    """Lines that call backward for it."""
    number: int = 0
    """Of its event and in its rows."""
    made_by: tuple[str, ...] = ()
    """The operations that made it, as autograd calls them: ``NllLoss``, ``Add``."""

    @property
    def called(self) -> str:
        """What the script calls it, without the lines, which an edit moves."""
        return self.name.partition(" (")[0]

    @property
    def change(self) -> str:
        """``errG (gan.py:21) 0.69 → 0.68``; empty when no number is known."""
        if math.isnan(self.first):
            return ""
        return f"{self.name} {words.figure(self.first)} → {words.figure(self.last)}"


def added_up(lane: LaneData) -> LaneData:
    """The same lane, with the sum of losses that belong together in place of their mean."""
    known = records_of(NamedLosses, lane.events)
    summed = {losses.number: losses.summed or 1 for losses in known}
    names = {"loss", "loss_baseline", "loss_limit"} & {*(lane.steps.dtype.names or ())}
    if max(summed.values(), default=1) == 1:
        return lane
    rows, numbers = lane.steps.copy(), _numbers(lane.steps)
    for number, count in summed.items():
        for name in names:
            rows[name][numbers == number] *= count
    return replace(lane, steps=rows)


def losses_of(lane: LaneData) -> tuple[LossCurve, ...]:
    """The losses of a lane, the one that most steps are about first."""
    found: list[LossCurve] = []
    for number, own in set_apart(lane.steps):
        about = named(lane.events, number)
        first, last, over = loss_ends(seen(lane.steps, own))
        parts = () if about is None else about.parts
        found.append(
            LossCurve(
                name=loss_name(about, number),
                first=first,
                last=last,
                over=over,
                parts=len(parts),
                number=number,
                made_by=tuple(dict.fromkeys(part.kind for part in parts if part.kind)),
            )
        )
    return tuple(found)


def rows_of(rows: Rows, loss: LossCurve) -> Rows:
    """The rows of one of the losses that ``losses_of`` has found in them."""
    own = next((own for number, own in set_apart(rows) if number == loss.number), None)
    return rows if own is None or own.all() else rows[own]


def differ(one: LossCurve, two: LossCurve) -> bool:
    """Whether two losses measure different things, as far as the operations say that made them."""
    made = {*one.made_by, *two.made_by}
    if not (one.made_by and two.made_by) or any(op.startswith(_HIDE) for op in made):
        return False
    if one.parts != two.parts:
        return True
    return {*one.made_by} != {*two.made_by} and any(map(_is_loss, made))


def set_apart(rows: Rows) -> list[tuple[int, Mask]]:
    """The rows of each loss by its number, the loss that most steps are about first.

    Where several optimizers step with one loss, the rows of the first of them stand for it.
    """
    numbers, optimizers = _numbers(rows), np.nan_to_num(column(rows, "opt"))
    found: list[tuple[int, Mask]] = []
    for number in np.unique(numbers[~np.isnan(numbers)]):
        own = numbers == number
        own &= optimizers == optimizers[own].min()
        found.append((int(number), own))
    # The optimizer that was made first leads, as long as no other loss has more steps by far.
    order = {number: int(np.argmax(own)) for number, own in found}
    return sorted(found, key=lambda one: (-(int(one[1].sum()) // _many(rows)), order[one[0]]))


def main_loss(rows: Rows) -> Mask:
    """The rows of the loss that most steps are about."""
    apart = set_apart(rows)
    return apart[0][1] if apart else np.ones(len(rows), dtype=np.bool_)


def named(events: Sequence[Event], number: int) -> NamedLosses | None:
    """What was recorded of a loss; None for one that nothing is known of."""
    known = records_of(NamedLosses, reversed(events))
    return next((losses for losses in known if losses.number == number), None)


def loss_name(about: NamedLosses | None, number: int) -> str:
    """``errD_real + errD_fake (gan.py:15 and 18)``."""
    if about is None or not about.parts:
        return f"optimizer {-1 - number}" if number < 0 else "another loss"
    parts = about.parts
    names = dict.fromkeys(part.name or "loss" for part in parts)
    files = dict.fromkeys(part.file for part in parts)
    lines = [part.line for part in parts]
    if len(files) == 1:
        where = place_words(next(iter(files)), words.listed([str(line) for line in lines]))
    else:
        where = words.listed([place_words(p.file, p.line) for p in parts])
    summed = about.summed == len(parts)
    return f"{' + '.join(names) if summed else f'mean of {words.listed([*names])}'} ({where})"


def loss_ends(losses: NDArray[np.float32]) -> tuple[float, float, int]:
    """The loss at first and at last, as medians of so many: one batch is a matter of chance.

    The last one of a run that ended without a finite loss is what it ended with.
    """
    finite = losses[np.isfinite(losses)]
    over = max(1, min(_ENDS, len(finite) // 20))
    first = float(np.median(finite[:over])) if finite.size else math.nan
    if not len(losses) or not np.isfinite(losses[-1]):
        return first, float(losses[-1]) if len(losses) else math.nan, over
    return first, float(np.median(finite[-over:])), over


def seen(rows: Rows, own: Mask) -> NDArray[np.float32]:
    """The losses of some rows that were measured, finite or not."""
    losses, bad = column(rows, "loss")[own], column(rows, "loss_bad")[own] > 0
    return losses[np.isfinite(losses) | bad]


def joined_losses(parts: Sequence[Sequence[LossCurve]]) -> tuple[LossCurve, ...]:
    """The losses of a rank over its restarts: each from its first part to its last."""
    found: dict[str, LossCurve] = {}
    for run_curves in (run_curves for part in parts for run_curves in part):
        before = found.get(run_curves.name, run_curves)
        found[run_curves.name] = replace(run_curves, first=before.first)
    return tuple(found.values())


def changes(run_curves_of_ranks: Sequence[LossCurve]) -> str:
    """How losses went: ``losses errD (gan.py:18) 1.4 → 1.2, errG (gan.py:21) 0.7 → 0.68``."""
    reported = [run_curves.change for run_curves in run_curves_of_ranks if run_curves.change]
    more = f" and {len(reported) - _NAMED} more" if len(reported) > _NAMED else ""
    over = max((run_curves.over for run_curves in run_curves_of_ranks), default=1)
    many = f" (medians of {over} steps)" if over > 1 else ""
    what = "losses" if len(run_curves_of_ranks) > 1 else "loss"
    return f"{what} {', '.join(reported[:_NAMED])}{more}{many}" if reported else ""


def _is_loss(made: str) -> bool:
    return any(word in made for word in _LOSSES)


def _many(rows: Rows) -> int:
    """Steps by which one loss must be ahead of another to be the one that most are about."""
    return max(1, len(rows) // 10)


def _numbers(rows: Rows) -> NDArray[np.float64]:
    """The number of the losses of each row; below zero where only the optimizer is known."""
    optimizers = np.nan_to_num(column(rows, "opt")).astype(np.float64)
    numbers = column(rows, "losses").astype(np.float64)
    for opt in np.unique(optimizers):
        own = np.flatnonzero(optimizers == opt)
        known = np.flatnonzero(~np.isnan(numbers[own]))
        if not known.size:
            numbers[own] = -1 - opt
            continue
        # Between two that differ it is not known with which row the change came.
        at = np.searchsorted(known, np.arange(len(own)), side="right")
        before = numbers[own[known[np.maximum(at - 1, 0)]]]
        after = numbers[own[known[np.minimum(at, len(known) - 1)]]]
        looked = ~np.isnan(numbers[own])
        # Once there are several each step is looked at, where it can be.
        others = np.flatnonzero(looked & (numbers[own] != before[0]))
        alike = (before == after) & (np.arange(len(own)) < (*others, len(own))[0])
        numbers[own] = np.where(looked | alike, before, np.nan)
    return numbers
