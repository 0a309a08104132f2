"""Makes causes of line times: what the training waits for when it waits for its data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..exams._caches import asked_before
from ..exams._loops import statement
from ..exams._profiles import Line, LoaderLook, Profile
from .step_times import StepTimes
from .time_causes import OWN, OWN_SECONDS, Found, by_spot, ms, named

# A line that made at least this share of the waiting is named.
_NAMED = 0.25


@dataclass(frozen=True, slots=True)
class Unseen:
    """Workers make the samples, and none may be fetched here to see how."""

    asks: Line
    """The line that asks for a batch."""


def waits(
    profile: Profile, times: StepTimes, batch: int, *, rare: bool, passes: int = 2
) -> Found | None:
    """The line of a dataset in this process that makes the loop wait.

    Args:
        profile: the lines of steps that waited.
        times: of all steps.
        batch: samples in a batch.
        rare: few of the steps waited.
        passes: over the data, this one included.
    """
    fetched = [line for line in profile.lines if line.mark == "fetch"]
    seconds = sum(line.seconds for line in fetched)
    if not fetched or not seconds:
        return None
    inside = [line for line in by_spot(line for line in fetched if line.direct) if line.seconds > 0]
    best = max(inside, key=lambda line: line.seconds, default=None)
    share = times.share_waited(16)
    data: dict[str, Any] = {
        "share": round(share, 3),
        "wait_ms": ms(share * times.middle),
        "workers": 0,
        "what": "dataset",
        "rare": rare,
    }
    if best is None or best.seconds < _NAMED * seconds:
        if seconds < 0.3 * share * profile.seconds:
            return None  # it is over: the steps that were looked at hardly wait
        asks = max(fetched, key=lambda line: line.seconds)
        return Found("input_bound", share, {**data, "what": "loader", **named(asks)})
    if (place := _place(best, passes)) is None:
        return None
    return Found(
        "input_bound",
        share,
        {
            **data,
            **place,
            "line_share": round(best.seconds / seconds, 3),
            "line_ms": ms(best.seconds),
            "sample_us": round(best.seconds / batch * 1e6, 1),
        },
    )


def _place(best: Line, passes: int) -> dict[str, Any] | None:
    """The line to name; where a cache is filled, the one that asks it, from the second pass on."""
    cache = asked_before(best.path or [best.spot])
    if cache is None:
        return named(best)
    if passes < 2:
        return None  # that is what a first pass is for
    return {**named(Line(*cache, best.function, "", 0.0, 0.0, (), True)), "what": "cache"}


def loader(
    look: LoaderLook | Unseen | None, times: StepTimes, workers: int, rare: bool, passes: int = 2
) -> Found | None:
    """The line of a dataset in a worker that makes the loop wait."""
    share = times.share_waited(16)
    if isinstance(look, Unseen):
        data = {"share": round(share, 3), "wait_ms": ms(share * times.middle), "workers": workers}
        data |= {"what": "loader", "rare": rare, "looked": False}
        return Found("input_bound", share, {**data, **named(look.asks)})
    if look is None or not look.samples:
        return None
    index, slowest = max(look.samples, key=lambda sample: sample[1])
    data: dict[str, Any] = {
        "share": round(share, 3),
        "wait_ms": ms(share * times.middle),
        "workers": workers,
        "what": "collate" if look.collate > look.per_sample else "dataset",
        "rare": rare,
        "sample_ms": ms(look.per_sample),
    }
    others = (look.per_sample * len(look.samples) - slowest) / max(1, len(look.samples) - 1)
    stands_out = slowest > 5 * others and len(look.samples) > 2 and index is not None
    if rare and not stands_out and index is not None:
        return None  # the batch of a slow sample has not been caught
    if stands_out:
        data |= {"rare": True, "sample": str(index), "sample_ms": ms(slowest)}
    best = next((line for line in look.lines if line.seconds > 0 and line.hits), None)
    total = sum(line.seconds for line in look.lines)
    if best is None or best.seconds < _NAMED * total:
        return Found("input_bound", share, {**data, "what": "loader"})
    if (place := _place(best, passes)) is None:
        return None
    return Found(
        "input_bound",
        share,
        {
            **data,
            **place,
            "line_share": round(best.seconds / total, 3),
            "line_ms": ms(best.seconds * len(look.samples)),
            "sample_us": round(best.seconds * 1e6, 1),
        },
    )


def made_in_loop(before: list[Line], profile: Profile) -> Found | None:
    """The line that makes most of a batch in the loop itself."""
    seconds = sum(line.seconds for line in before)
    share = seconds / profile.seconds if profile.seconds else 0.0
    if share < OWN or seconds < OWN_SECONDS:
        return None
    best = max(before, key=lambda line: line.seconds)
    if best.seconds < _NAMED * seconds:
        return None
    return Found(
        "input_bound",
        share,
        {
            **named(best),
            "share": round(share, 3),
            "wait_ms": ms(seconds),
            "workers": 0,
            "what": "loop",
            "rare": False,
            "line_share": round(best.seconds / seconds, 3),
            "line_ms": ms(best.seconds),
            "hits": round(best.hits, 1),
            "makes": _makes(best),
        },
    )


def _makes(line: Line) -> bool:
    """Whether a line is one call of torch or numpy, which nobody calls slow Python."""
    calls = statement(*line.spot).calls
    return bool(calls) and all(call.split(".")[0] in ("torch", "np", "numpy") for call in calls)
