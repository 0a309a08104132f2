"""What holdfast cost a run: host time on the training thread, over the wall time of the same steps.

Told apart are an ordinary step, the start of a run (names are recorded, tests are made once), and
steps with non-finite values: finding their cause takes as long as it takes, and says nothing about
the price of an ordinary step. Above its budget the guard drops parts in an order; what cannot be
dropped is the floor that skipping a bad step needs. Where a device is behind the host, time of the
host costs nothing, and only our kernels count.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..records import records_of
from ..records.run import BackedOff
from ..records.times import TimeSaved
from ..run import Rows
from ..run.thinning import INCIDENTS
from ..types import Event
from . import words

# Steps in which a run is looked at more closely: baselines, memory, loader, lines. A guess; in
# examples/dies_of_nan.py the share of our time halves after them.
_START = 128
# With fewer ordinary steps after it, or shorter ones, chance outweighs them; over a minute the
# start does not matter. Guesses.
_STEPS, _SECONDS, _LONG = 100, 5.0, 60.0
MEASUREMENTS, WATCHERS, FLOOR = "measurements", "look-outs", "floor"
# In the order in which they are dropped, by the names in the events of the guard.
_DROPPED = {
    MEASUREMENTS: "weights, layers, updates and memory were measured less often",
    WATCHERS: "leaks and lost time were looked for in some of the steps only",
    FLOOR: "the rest is what skipping a bad step needs",
}
# Time for bad steps and for the start below this share of the run is not worth a word.
_WORTH = 0.01


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of ours and seconds in all, over the same steps; ranks and restarts add up."""

    steps: int
    """Ordinary steps."""
    seconds: float
    """Wall time of them."""
    ours: float
    """Our part of it."""
    bad_steps: int = 0
    bad_seconds: float = 0.0
    """Wall time of the steps with non-finite values."""
    bad_ours: float = 0.0
    start_seconds: float = 0.0
    """Wall time of the first steps after the very first, where they are told apart."""
    start_ours: float = 0.0
    first: float = 0.0
    """Our part of the very first step, which sets everything up."""
    device: bool = False
    """Whether a device computed beside the host, which hides part of our time."""
    hidden: float = 0.0
    """Share of the ordinary steps in which it hid all of it, which is then not in ``ours``."""
    torch_time_saved: float = 0.0
    """What the guard spares of torch's own time in the ordinary steps, which is not in ``ours``."""
    budget: float = 0.0
    """The share that was allowed, where it was exceeded."""
    dropped: tuple[str, ...] = ()
    """What was dropped because of that, in this order; the floor where nothing else could be."""

    @property
    def share(self) -> float:
        """Our share of the time of all steps but the first, bad ones included."""
        return self.whole / self.wall

    @property
    def whole(self) -> float:
        """Seconds of ours in all steps but the first."""
        return self.ours + self.bad_ours + self.start_ours

    @property
    def wall(self) -> float:
        """Seconds that these steps took."""
        return self.seconds + self.bad_seconds + self.start_seconds

    @property
    def per_step(self) -> float:
        """Seconds of ours in an ordinary step."""
        return self.ours / self.steps

    @property
    def tells(self) -> bool:
        """Whether the run was long enough for a cost per step."""
        return self.seconds >= (_SECONDS if self.start_seconds else _LONG)

    @property
    def explained(self) -> bool:
        """Whether looking into bad steps took a part of the run that is worth a word."""
        return self.bad_ours > _WORTH * self.wall

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            steps=self.steps + other.steps,
            seconds=self.seconds + other.seconds,
            ours=self.ours + other.ours,
            bad_steps=self.bad_steps + other.bad_steps,
            bad_seconds=self.bad_seconds + other.bad_seconds,
            bad_ours=self.bad_ours + other.bad_ours,
            start_seconds=self.start_seconds + other.start_seconds,
            start_ours=self.start_ours + other.start_ours,
            first=self.first + other.first,
            device=self.device or other.device,
            hidden=(self.hidden * self.steps + other.hidden * other.steps)
            / (self.steps + other.steps),
            torch_time_saved=self.torch_time_saved + other.torch_time_saved,
            budget=max(self.budget, other.budget),
            dropped=tuple(part for part in _DROPPED if part in (*self.dropped, *other.dropped)),
        )


def cost_of(rows: Rows, written: int, events: Sequence[Event] = ()) -> Cost | None:
    """The cost of one lane; None where nothing was measured.

    Args:
        rows: of the lane; thinned rows stand for those that are gone.
        written: how many rows there were before.
        events: of the lane, which say what was dropped and what is spared.
    """
    if len(rows) < 2:
        return None
    guard = _column(rows, "guard")[1:].astype(np.float64)
    took = np.maximum(0.0, np.diff(rows["time"]))
    stands_for = np.maximum(1.0, np.diff(rows["step"]).astype(np.float64))
    known = np.isfinite(guard)
    bad = np.zeros(len(guard), dtype=np.bool_)
    for name in INCIDENTS:
        bad |= _column(rows, name)[1:] > 0
    ordinary, odd = known & ~bad, known & bad
    if not ordinary.any() or took.sum() <= 0:
        return None
    early = ordinary & (rows["step"][1:] - rows["step"][0] <= _START)
    late = ordinary & ~early
    if stands_for[late].sum() < _STEPS or took[late].sum() < _SECONDS:
        early, late = np.zeros_like(early), ordinary
    # Of a thinned run the rows around incidents are all there, the others every second, fourth, ...
    rest = written - 1 - odd.sum() - stands_for[early].sum()
    every = max(1.0, float(rest / stands_for[late].sum()))
    count = every * float(stands_for[late].sum())
    ours = every * float((guard * stands_for)[late].sum())
    kernels, behind = _column(rows, "guard_device"), _column(rows, "guard_hidden")
    # The first sample has compiled them.
    looked = np.flatnonzero(np.isfinite(kernels) & np.isfinite(behind))[1:]
    kernels, behind = kernels[looked], behind[looked] > 0
    hidden = float(behind.mean()) if len(looked) else 0.0
    ours *= 1 - hidden
    saved = [found.seconds for found in records_of(TimeSaved, events)]
    torch_time_saved = min(ours, (1 - hidden) * count * saved[-1]) if saved else 0.0
    ours -= torch_time_saved
    # Where the device is behind they are what is paid, elsewhere what they take beyond the host.
    for share, some in ((hidden, kernels[behind]), (1 - hidden, kernels[~behind])):
        ours += count * share * float(np.median(some)) if len(some) else 0.0
    first = float(_column(rows, "guard")[0])
    over = list(records_of(BackedOff, events))
    parts = {found.part for found in over}
    return Cost(
        steps=round(count),
        seconds=float(took[late].sum()),
        ours=ours,
        bad_steps=int(odd.sum()),
        bad_seconds=float(took[odd].sum()),
        bad_ours=float(guard[odd].sum()),
        start_seconds=float(took[early].sum()),
        start_ours=float((guard * stands_for)[early].sum()),
        first=first if math.isfinite(first) else 0.0,
        device=len(looked) > 0,
        hidden=hidden,
        torch_time_saved=torch_time_saved,
        budget=max((found.budget for found in over), default=0.0),
        dropped=tuple(part for part in _DROPPED if part in parts),
    )


def joined(costs: Iterable[Cost | None]) -> Cost | None:
    """The cost over ranks and restarts."""
    total: Cost | None = None
    for cost in costs:
        total = cost if total is None else total if cost is None else total + cost
    return total


def cost_words(cost: Cost | None) -> str:
    """One sentence: ``Guard cost 0.2 ms per step (1.3 %).``

    >>> cost_words(Cost(steps=4000, seconds=64.0, ours=0.8)).replace(words.NBSP, " ")
    'Guard cost 200 µs per step (1.2 %).'
    """
    if cost is None:
        return "Guard cost unknown: too few steps were recorded."
    steps = words.plural(cost.bad_steps, "bad step")
    odd = f"{words.duration(cost.bad_ours)}{{}} to look into {steps}"
    odd = odd if cost.explained else ""
    if not cost.tells:
        most = f", {odd.format(' of it')}" if odd else ""
        return (
            f"Guard cost {words.duration(cost.whole)} of {words.duration(cost.wall)}{most}; "
            "too short a run to tell what a step costs."
        )
    # What is spared of torch is not known in full.
    most = "at most " if cost.device or cost.torch_time_saved else ""
    each = _each(cost)
    start = cost.start_ours + cost.first
    begin = f"{words.duration(start)} at the start" if start > _WORTH * cost.wall else ""
    return f"Guard cost {words.listed([f'{most}{each}', *filter(None, [begin, odd.format('')])])}."


def _each(cost: Cost) -> str:
    each = f"{words.duration(cost.per_step)} per step"
    # Of a run of seconds the share says how short its steps are, and nothing of what it cost.
    if cost.wall < _LONG:
        return each
    budget = f"; budget {words.percent(cost.budget)}" if FLOOR in cost.dropped else ""
    return f"{each} ({words.percent(cost.ours / cost.seconds)}{budget})"


def cost_figure(cost: Cost | None) -> str:
    """The same in two words, for a row of figures; empty where nothing was measured."""
    if cost is None:
        return ""
    if not cost.tells:
        return words.duration(cost.whole)
    return words.percent(cost.ours / cost.seconds) if cost.wall >= _LONG else _each(cost)


def cost_note(cost: Cost | None) -> str:
    """The same, and how it was measured."""
    if cost is None or not math.isfinite(cost.share):
        return cost_words(cost)
    bound = "; the device computes meanwhile, so that the loop lost no more" if cost.device else ""
    if cost.hidden:
        bound += (
            f". In {words.percent(cost.hidden)} of the steps that were looked at the device was "
            "behind the host, whose time costs nothing then: there only kernels count"
        )
    if cost.torch_time_saved:
        saved = cost.torch_time_saved / cost.steps
        bound += (
            f". Per step holdfast takes {words.duration(cost.per_step + saved)} "
            f"and saves torch {words.duration(saved)} in the optimizer's step "
            "and in clipping; the difference is what counts"
        )
    return (
        f"{cost_words(cost)} Measured: time inside holdfast on the training thread over the wall "
        f"time of the same steps{bound}.{_over_budget(cost)}"
    )


def _over_budget(cost: Cost) -> str:
    if not cost.dropped:
        return ""
    above = f" of {words.percent(cost.budget)}" if cost.budget else ""
    done = words.listed([_DROPPED[part] for part in cost.dropped if part != FLOOR])
    rest = f"; {_DROPPED[FLOOR]}" if FLOOR in cost.dropped else ""
    return f" Above its budget{above} {done}{rest}."


def _column(rows: Rows, name: str) -> NDArray[np.float32]:
    if name in (rows.dtype.names or ()):
        return cast("Any", rows[name])
    return np.full(len(rows), np.nan, dtype=np.float32)
