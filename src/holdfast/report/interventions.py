"""What holdfast did to a run beyond skipping steps with non-finite values, and how to forbid it.

rolled back 1 time, learning rate × 0.5 (off: --on OPT001=observe)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from ..records import records_of
from ..records.recovery import ClippingSwitched, LoweredRate, OrderedAction, RolledBack
from ..run import LaneData
from ..types import Event
from . import words
from .action_words import one_line
from .columns import column
from .lanes import skipped_rows

EXPLOSION = "OPT002"


def interventions(lanes: Sequence[LaneData], rollbacks: int) -> str:
    """One line about a run; empty where nothing but bad steps was touched.

    Args:
        lanes: of the run; ranks do the same, so the first one speaks for all.
        rollbacks: how many were kept.
    """
    lanes = [lane for lane in lanes if lane.rank == lanes[0].rank]
    events = [event for lane in lanes for event in lane.events]
    codes = [one_line(done.code) for done in filter(None, map(RolledBack.of, events))]
    parts = [f"rolled back {_times(rollbacks)}"] if rollbacks else []
    factor = math.prod(_factors(events))
    if factor < 1:
        parts.append(f"learning rate × {words.figure(factor)}")
        codes += map(_code, events)
    skipped = sum(map(_exploded, lanes))
    if skipped:
        parts.append(f"skipped {words.plural(skipped, 'step')} with exploding gradients")
    clipped = any(change.on for change in records_of(ClippingSwitched, events))
    if clipped:
        parts.append("clipped gradients for a while")
    if skipped or clipped:
        codes.append(EXPLOSION)
    if not parts:
        return ""
    undo = " ".join(f"--on {code}=observe" for code in dict.fromkeys(filter(None, codes)))
    return f"{', '.join(parts)}{f' (off: {undo})' if undo else ''}"


def _exploded(lane: LaneData) -> int:
    """Finite steps that were skipped."""
    return int((skipped_rows(lane) & np.isin(column(lane.steps, "outlier"), (1, 3))).sum())


def _factors(events: Iterable[Event]) -> Iterable[float]:
    """What the learning rate was multiplied by, each time."""
    for event in events:
        done, lowered = RolledBack.of(event), LoweredRate.of(event)
        factor = done.lr_factor if done else lowered.factor if lowered else 1.0
        yield factor if 0 < factor < 1 else 1.0


def _code(event: Event) -> str:
    """The finding that the learning rate was lowered for; empty where it was not."""
    if event.kind == LoweredRate.kind:
        return EXPLOSION
    taken = OrderedAction.of(event)
    return one_line(taken.code) if taken is not None and taken.action == "lower_lr" else ""


def _times(count: int) -> str:
    return words.plural(count, "time")
