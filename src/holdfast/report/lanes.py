"""One lane in numbers: steps, losses, phases, memory, and what the guard cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ..detectors.peers import peer_is_gone
from ..errors import RunFolderError
from ..records import records_of
from ..records.crash import Died, RaisedException
from ..records.memory import LostStep
from ..records.recovery import RolledBack, TrialResult
from ..records.run import Dropped, End, Truncated
from ..run import (
    LaneData,
    Rows,
    Run,
    life_of,
    read_run,
)
from ..types import Event
from . import pace
from .columns import column, first_optimizer, of_first_optimizer
from .cost import Cost, cost_of
from .ending import gone_together
from .losses import LossCurve, added_up, losses_of, main_loss

# Skipped steps below which no run is said to stand still: a guess, a first few are no rule.
_FEW = 20
PHASES = ("data_wait", "h2d", "forward", "backward", "optimizer", "other", "collective")


@dataclass(frozen=True, kw_only=True)
class LaneSummary:
    """What one training process recorded."""

    lane: str
    rank: int
    steps: int
    rows: int
    """Rows on disk; fewer than were written when a long run was thinned."""
    first_step: int
    last_step: int
    skipped: int
    rollbacks: int
    """Number of rollbacks; those that were undone do not count."""
    seconds: float
    first_loss: float = math.nan
    """The first one that was finite, of the loss that most steps are about."""
    last_loss: float = math.nan
    """The last one that was recorded, NaN or infinite if the run ended so."""
    loss_over: int = 1
    """Losses at either end of which these two are medians."""
    losses: tuple[LossCurve, ...] = ()
    """All of them, that one first."""
    cost: Cost | None = None
    """What holdfast cost; None where nothing was measured."""
    finite_loss: float = math.nan
    """The last one that was finite."""
    finite_step: int = -1
    """The step of it."""
    bad_losses: int = 0
    """Those of it that were NaN or infinite."""
    mean_loss: float = math.nan
    """Mean of the others, as the script's own average would be without the bad ones."""
    stands_still: bool = False
    """Most of the steps of the first optimizer were skipped: the training did not go on."""
    phases: Mapping[str, float] = field(default_factory=dict[str, float])
    """Mean seconds per step."""
    pace: str = ""
    """What bounds a step, and whether it stays so."""
    peak_bytes: Mapping[str, float] = field(default_factory=dict[str, float])
    dropped: int = 0
    corrupt: int = 0
    unread: int = 0
    """Events of kinds so frequent that only their first and last were read."""
    ended: bool = False
    """Whether the process wrote a final record; False after a kill."""
    end: str = ""
    """How the process ended, in a few words."""


def read_lanes(run: Run) -> list[LaneData]:
    """Read everything a run recorded; invalid records are dropped and counted."""
    return [trusted(run, lane) for lane in read_run(run)]


def trusted(run: Run, lane: LaneData) -> LaneData:
    """Refuse a lane without steps or times; add what a killed supervisor could not write."""
    missing = {"step", "time"} - set(lane.steps.dtype.names or ())
    if missing:
        raise RunFolderError(
            f"the steps of lane {lane.lane} have no column {' and '.join(sorted(missing))}, in "
            f"{run.path}; restore the files or remove this run"
        )
    return added_up(replace(lane, events=[*lane.events, *_last_words(run, lane.events)]))


def _last_words(run: Run, events: Sequence[Event]) -> list[Event]:
    """What the supervisor would have written, had it not been killed together with the script."""
    reported = any(event.kind in ("end", Died.kind) for event in events)
    if reported or life_of(run).state != "killed":
        return []
    died = gone_together(events)
    return [] if died is None else [died]


def summarize_lane(data: LaneData) -> LaneSummary:
    """Sum up one lane; every number survives empty lanes and missing columns."""
    rows = data.steps
    end = next(records_of(End, reversed(data.events)), None)
    steps = rows["step"] if len(rows) else np.zeros(0, dtype=np.int64)
    written = max(len(rows), end.steps if end else 0)
    out = skipped_rows(data)
    skipped = int(np.sum(out))
    own, followed = main_loss(rows), losses_of(data)
    losses, bad = column(rows, "loss")[own], column(rows, "loss_bad")[own] > 0
    finite = np.flatnonzero(np.isfinite(losses))
    main = followed[0] if followed else LossCurve(name="", first=math.nan, last=math.nan, over=1)
    seconds = float(rows["time"][-1] - rows["time"][0]) if len(rows) else 0.0
    phases = means(rows, PHASES)
    return LaneSummary(
        lane=data.lane,
        rank=data.rank,
        steps=int(steps[-1] - steps[0]) + 1 if len(rows) else 0,
        rows=len(rows),
        first_step=int(steps[0]) if len(rows) else -1,
        last_step=int(steps[-1]) if len(rows) else -1,
        skipped=max(skipped, end.skipped if end else 0),
        rollbacks=_rollbacks(data.events),
        seconds=max(0.0, seconds),
        first_loss=main.first,
        last_loss=main.last,
        loss_over=main.over,
        losses=followed,
        finite_loss=float(losses[finite[-1]]) if finite.size else math.nan,
        finite_step=int(steps[own][finite[-1]]) if finite.size else -1,
        bad_losses=int(np.sum(bad)),
        mean_loss=_mean(losses),
        stands_still=_stands_still(steps, steps[first_optimizer(rows) & out]),
        cost=cost_of(rows, written, data.events),
        phases=phases,
        pace=pace.verdict(of_first_optimizer(rows), phases),
        peak_bytes=peaks(rows, ("mem_allocated", "mem_reserved", "rss")),
        dropped=_dropped(data),
        corrupt=data.corrupt,
        unread=data.unread,
        ended=end is not None,
        end=_end(data.events),
    )


def _stands_still(steps: NDArray[np.int64], skipped: NDArray[np.int64]) -> bool:
    """Whether more than half of the steps, and not only a few, were skipped."""
    count = len(np.unique(skipped))
    return count >= _FEW and 2 * count > int(steps[-1] - steps[0]) + 1


def _end(events: Sequence[Event]) -> str:
    raised = next(filter(None, map(RaisedException.of, reversed(events))), None)
    if raised is not None:
        gone = ": another rank is gone" if peer_is_gone(raised) else ""
        return f"{raised.type or 'exception'}{gone}"
    if any(event.kind == "end" for event in events):
        return "ended"
    died = next(filter(None, map(Died.of, reversed(events))), None)
    return "no final record" if died is None else f"killed {died.signal}".strip()


def _rollbacks(events: Iterable[Event]) -> int:
    """Those that were kept: of one that was undone only its trial is recorded."""
    return sum(event.kind == RolledBack.kind for event in events)


def _dropped(data: LaneData) -> int:
    """Events carry running totals, one kind of loss each: the last of each kind counts."""
    latest: dict[str, int] = {}
    for dropped in records_of(Dropped, data.events):
        for name, count in (("records", dropped.records), ("readings", dropped.readings)):
            latest[name] = max(latest.get(name, 0), count)
    for cut in records_of(Truncated, data.events):
        name = f"left_out {cut.stream}"
        latest[name] = max(latest.get(name, 0), cut.left_out)
    return sum(latest.values())


def means(rows: Rows, names: tuple[str, ...]) -> dict[str, float]:
    """Mean of each column that was measured."""
    known = {name: _mean(column(rows, name)) for name in names}
    return {name: mean for name, mean in known.items() if not math.isnan(mean)}


def peaks(rows: Rows, names: tuple[str, ...]) -> dict[str, float]:
    """The largest value of each column that was measured."""
    measured = {name: column(rows, name) for name in names}
    return {
        name: float(np.nanmax(values))
        for name, values in measured.items()
        if not np.all(np.isnan(values))
    }


def _mean(values: NDArray[np.float32]) -> float:
    known = values[np.isfinite(values)]
    return float(np.mean(known, dtype=np.float64)) if known.size else math.nan


def skipped_rows(data: LaneData) -> NDArray[np.bool_]:
    """Rows of steps that were skipped for what they were.

    A batch that older weights are tried on is handed out a second time only to be looked at, and a
    step that ran out of memory is made again.
    """
    tried = (RolledBack.of(event) or TrialResult.of(event) for event in data.events)
    replayed = [one.replayed for one in tried if one is not None and one.replayed is not None]
    replayed += [event.step for event in data.events if event.kind == LostStep.kind]
    return (column(data.steps, "skipped") > 0) & ~np.isin(data.steps["step"], replayed)
