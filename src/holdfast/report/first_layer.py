"""The layers around an incident: which gradient became bad first, and what led up to it.

Built from the tables ``layersN``, which hold every step near an incident. The page shows it as a
heat map, every report as sentences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..records.recovery import (
    ClippingSwitched,
    LoweredRate,
    RolledBack,
    RunStopped,
    TrialResult,
)
from ..run import LaneData
from ..types import Finding
from . import words
from .action_words import rescue_of
from .layers import (
    LayerWindow,
    Mask,
    Norms,
    loss_was_bad,
    optimizer_of,
    window_around,
    worth_showing,
)
from .record import RunRecord

INCIDENTS = 3

# A guess: norms of a healthy layer move by a factor of two or three from step to step.
_GREW = 10.0
# Actions listed with an incident besides its layers, and how many.
_SAVED = tuple(
    kind.kind for kind in (RolledBack, TrialResult, ClippingSwitched, LoweredRate, RunStopped)
)
_AT_MOST = 4
# Without a bad gradient, fewer steps than this show no development.
_TELLING = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class Story:
    """Gradient norms around one incident: ``norms[layer, step]``, NaN and inf as they were."""

    finding: Finding
    rank: int
    step: int
    steps: tuple[int, ...]
    layers: tuple[str, ...]
    norms: Norms
    missing: Mask
    """Cells without a gradient, which are no fault."""
    total: int
    first: str
    """The layer that became bad first; empty when none did."""
    sentences: tuple[str, ...]


def stories(record: RunRecord) -> list[Story]:
    """The stories of the worst findings, one for each incident that has its layers recorded."""
    stories: dict[tuple[str, int, int], Story] = {}
    for finding in record.summary.findings:
        lane = record.lane_of(finding)
        if lane is None:
            continue
        key = (lane.lane, optimizer_of(finding), finding.step)
        if key not in stories and (story := _story(lane, finding)) is not None:
            stories[key] = story
        if len(stories) == INCIDENTS:
            break
    return list(stories.values())


def _story(lane: LaneData, finding: Finding) -> Story | None:
    window = window_around(lane, finding)
    if window is None or (len(window.steps) < _TELLING and not window.bad.any()):
        return None
    chosen = worth_showing(window)
    with_loss = loss_was_bad(lane, finding)
    return Story(
        finding=finding,
        rank=lane.rank,
        step=finding.step,
        steps=window.steps,
        layers=tuple(window.names[i] for i in chosen),
        norms=window.norms[chosen],
        missing=window.missing[chosen],
        total=len(window.names),
        first=window.names[window.blamed] if window.blamed >= 0 else "",
        sentences=(
            *_at(window, with_loss),
            *_before(window),
            *_after(window),
            *_saved(lane, window),
        ),
    )


def _at(window: LayerWindow, loss_was_bad: bool) -> Iterator[str]:
    step, bad = words.number(window.steps[window.at]), int(window.bad[:, window.at].sum())
    of = f"{words.number(bad)} of {words.plural(len(window.names), 'layer')}"
    if loss_was_bad:
        yield (
            f"On step {step} the loss itself was non-finite, and with it the gradients of {of}: "
            "no layer was first."
        )
    elif window.blamed >= 0:
        nearest = "; it is the one nearest to the loss, which backward reaches first"
        yield (
            f"On step {step} {window.names[window.blamed]} was first: the gradients of {of} were "
            f"non-finite{nearest if bad > 1 else ''}."
        )
    elif bad:
        yield f"On step {step} the gradients of {of} were non-finite."
    else:
        yield f"On step {step} the gradients of all layers were finite."


def _before(window: LayerWindow) -> Iterator[str]:
    at, names = window.at, window.names
    past = window.norms[:, :at]
    bad: Mask = np.any(window.bad[:, :at], axis=0)
    if bad.any():
        early = words.number(window.steps[int(np.flatnonzero(bad)[0])])
        yield f"There were non-finite gradients before it, on step {early}."
        return
    if not at or not np.isfinite(past[:, -1]).any():
        return
    last = past[:, -1]
    top = int(np.nanargmax(last))
    yield (
        f"On step {words.number(window.steps[at - 1])}, the one before, every gradient was "
        f"finite; the largest norm was {words.figure(last[top])}, of {names[top]}."
    )
    if at < 3:
        return
    known = np.flatnonzero(np.isfinite(past[:, :-1]).any(axis=1) & np.isfinite(last))
    typical = np.nanmedian(past[known, :-1], axis=1)
    growth = last[known] / np.maximum(typical, 1e-30)
    most = int(np.argmax(growth)) if len(known) else -1
    if most >= 0 and growth[most] >= _GREW:
        yield (
            f"It built up: in the {words.plural(at, 'step')} before, the gradient of "
            f"{names[known[most]]} grew from {words.figure(typical[most])} to "
            f"{words.figure(float(last[known[most]]))}."
        )
    else:
        yield f"It came suddenly: in the {words.plural(at, 'step')} before, no layer stood out."


def _after(window: LayerWindow) -> Iterator[str]:
    after: Mask = np.any(window.bad[:, window.at + 1 :], axis=0)
    steps = words.plural(len(after), "step")
    if after.any():
        yield (
            f"Of the {steps} recorded after it, {words.number(int(after.sum()))} had non-finite "
            "gradients."
        )
    elif len(after):
        yield f"Everything was finite again in the {steps} after it."


def _saved(lane: LaneData, window: LayerWindow) -> Iterator[str]:
    """Actions taken near these steps."""
    first, last = window.steps[window.at], window.steps[-1]
    near = [e for e in lane.events if e.kind in _SAVED and first <= e.step <= last]
    for event in near[:_AT_MOST]:
        if (rescue := rescue_of(event)) is not None:
            why = f": {rescue.why}" if rescue.why else ""
            yield f"On step {words.number(event.step)} holdfast {rescue.what}{why}."
