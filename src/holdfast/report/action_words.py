"""Wording of recovery actions, the same in live lines, in the report and on the page.

step 977  rolled back 8 steps: loss 2.31 → 61, their data is skipped              [OPT001]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ..harmless import visible
from ..records import KINDS as RECORDS
from ..records import Kind
from ..records.memory import BatchSplit, LostStep
from ..records.recovery import (
    ClippingSwitched,
    LoweredRate,
    NewLossLevel,
    NewTask,
    RolledBack,
    RunStopped,
    SnapshotTotals,
    TrialResult,
)
from ..records.resuming import CheckpointResult, Resumed
from ..records.steps import Quarantined, ScalerChange, SkippedBatch, Unreadable
from ..types import Event
from . import words

K = TypeVar("K", bound=Kind)


@dataclass(frozen=True, kw_only=True)
class Rescue:
    """One action taken: ``what`` in the past tense, ``why`` or how, and the result.

    ``after`` is of interest in a report, and too long for a live line.
    """

    what: str
    why: str = ""
    after: str = ""
    code: str = ""
    variant: str = ""
    """Distinguishes two kinds of one event, such as a checkpoint that failed."""


def rescue_of(event: Event) -> Rescue | None:
    """Wording of an event; None for events that are no recovery action."""
    kind = RECORDS.get(event.kind)
    if kind is None or kind not in _OF_RECORDS:
        return None
    record = kind.of(event)
    return None if record is None else _OF_RECORDS[kind](record)


def number_in(data: Mapping[str, Any], name: str) -> float:
    """A number of an event, NaN where there is none; infinities are strings on disk."""
    try:
        return float(data.get(name, math.nan))
    except (TypeError, ValueError):
        return math.nan


def text_in(data: Mapping[str, Any], name: str) -> str:
    """Words of an event, fit to be shown on one line; empty where there are none."""
    return shown(data.get(name))


def shown(value: object) -> str:
    """A value, fit to be shown on one line; empty for None."""
    return "" if value is None else words.clip(" ".join(visible(str(value)).split()), 300)


def one_line(text: str) -> str:
    """Words of somebody else, fit to be shown on one line.

    >>> one_line("no space\\n  left")
    'no space left'
    """
    return words.clip(" ".join(visible(text).split()), 300)


def _rollback(done: RolledBack) -> Rescue:
    why = one_line(done.why)
    reason = {
        "loss": f"loss {words.figure(done.usual)} → {words.figure(done.loss)}",
        "nonfinite": "loss or gradients were non-finite",
        "weights": "weights were non-finite",
    }.get(why, why)
    factor = done.lr_factor
    parts = [
        reason,
        "their data is skipped",
        f"learning rate × {words.figure(factor)}" if factor < 1 else "",
        "optimizer state reset" if done.moments_reset else "",
    ]
    back = [
        f"back to step {words.number(done.to)}",
        f"it took {words.duration(done.ms / 1000)}" if math.isfinite(done.ms) else "",
        "" if done.left is None else f"{words.plural(done.left, 'more rollback')} allowed",
    ]
    what = f"rolled back {words.plural(done.steps, 'step')}"
    if done.validation is not None:
        what = f"went back to the best state by validation ({words.figure(done.validation)})"
    return Rescue(
        what=what,
        why=", ".join(filter(None, parts)),
        after=", ".join(filter(None, back)),
        code=one_line(done.code),
    )


def _trial(trial: TrialResult) -> Rescue:
    tried, usual, verdict = trial.tried, trial.usual, trial.verdict
    losses = f"{words.figure(tried)}, baseline {words.figure(usual)}"
    if verdict == "weights":
        why = f"with the older weights the loss is {losses}: the weights were damaged"
        return Rescue(what="kept the rollback", why=why)
    why = f"the older weights do no better: loss {losses}"
    if verdict == "nonfinite":
        why = "older weights give values that are not finite, too: the cause is not in the weights"
    elif verdict == "data" and usual < tried < math.inf:
        too = f"{words.figure(tried)} too, baseline {words.figure(usual)}"
        why = f"with the older weights the loss is {too}: the data has changed"
    code = one_line(trial.cause)
    return Rescue(what="undid the rollback", why=why, variant="undone", code=code)


def _level(level: NewLossLevel) -> Rescue:
    before, after = level.before, level.after
    return Rescue(
        what="reset the loss baseline",
        why=f"baseline {words.figure(before)} → {words.figure(after)}, and the loss stays there",
    )


def _new_task(task: NewTask) -> Rescue:
    return Rescue(what="forgot its baselines", why="it was told that a new task begins")


def _clipping(clipping: ClippingSwitched) -> Rescue:
    why = one_line(clipping.why)
    if not clipping.on:
        return Rescue(what="ended automatic clipping", why=why, variant="off")
    limit = words.figure(clipping.limit)
    return Rescue(what=f"began to clip gradients at a norm of {limit}", why=why)


def _lowered(lowered: LoweredRate) -> Rescue:
    return Rescue(
        what=f"multiplied the learning rate by {words.figure(lowered.factor)}",
        why=f"gradient norm {words.figure(lowered.usual)} → {words.figure(lowered.norm)}",
        code="OPT002",
    )


def _stop(stop: RunStopped) -> Rescue:
    saved = one_line(stop.checkpoint)
    state = f"the last good state is in {saved}" if saved else "no good state could be saved"
    return Rescue(
        what="stopped the run",
        why="; ".join(filter(None, [one_line(stop.why), state])),
        code=one_line(stop.code),
    )


def _checkpoint(saved: CheckpointResult) -> Rescue:
    if saved.failed:
        what = "could not save a checkpoint"
        return Rescue(what=what, why=one_line(saved.failed), variant="failed")
    seconds = saved.seconds
    parts = [
        one_line(saved.file),
        "" if saved.bytes is None else words.size(saved.bytes),
        "" if seconds is None else f"{words.duration(seconds)} in the background",
    ]
    return Rescue(what="saved a checkpoint", why=", ".join(filter(None, parts)))


def _snapshots(kept: SnapshotTotals) -> Rescue:
    parts = [
        f"{words.number(kept.count)} taken",
        f"the last {words.plural(kept.every, 'step')} apart" if kept.every else "",
        words.size(kept.bytes),
        f"{words.duration(kept.ms / 1000)} each" if math.isfinite(kept.ms) else "",
        f"{words.number(kept.dropped)} dropped" if kept.dropped else "",
    ]
    return Rescue(
        what="kept snapshots of the state in host memory, to roll back to",
        why=", ".join(filter(None, parts)),
    )


def _quarantine(sample: Quarantined) -> Rescue:
    file = shown(sample.file)
    name = f"{shown(sample.index) or 'unknown'}{f' ({file})' if file else ''}"
    return Rescue(what=f"quarantined sample {name}", why=shown(sample.reason))


def _skipped_batch(batch: SkippedBatch) -> Rescue:
    samples = [str(one) for one in batch.samples]
    few = ", ".join(samples[:8]) + (", …" if len(samples) > 8 else "")
    return Rescue(what=f"skipped the batch of samples {few}", why="it has ended the run twice")


def _unreadable(sample: Unreadable) -> Rescue:
    file = shown(sample.path)
    name = f"sample {shown(sample.index)}{f' ({file})' if file else ''}"
    if not sample.replaced:
        return Rescue(what=f"read {name} again", why=f"after {_error(sample)}", variant="again")
    return Rescue(what=f"put another sample in the place of {name}", why=_error(sample))


def _split(split: BatchSplit) -> Rescue:
    if split.parts < 2:
        return Rescue(
            what=f"could not split the batch of {one_line(split.module) or 'the model'}",
            why=one_line(split.refused),
            code="MEM008",
            variant="refused",
        )
    parts_of = [
        f"out of memory in {one_line(split.phase) or 'a pass'}",
        f"approximate because {one_line(split.why)}" if split.why else "exact",
        f"{words.duration(split.seconds)} lost" if split.seconds > 0 else "",
    ]
    samples = words.plural(split.samples, "sample")
    return Rescue(
        what=f"split batches of {samples} into {words.number(split.parts)} parts",
        why=", ".join(filter(None, parts_of)),
        after="each part computes its forward pass twice; --no-split-batches switches this off",
        code="MEM008",
    )


def _lost_step(lost: LostStep) -> Rescue:
    count = lost.batches
    again = "its batch is" if count == 1 else f"its {words.number(count)} batches are"
    return Rescue(
        what="skipped a step that ran out of memory in backward",
        why=f"{again} handed out again" if count else "its batch cannot be handed out again",
        code="MEM008",
    )


def _error(sample: Unreadable) -> str:
    said = (shown(sample.message).splitlines() or [""])[0]
    return f"{shown(sample.type)}: {said}" if said else shown(sample.type)


def _scaler(change: ScalerChange) -> Rescue:
    what, scale = shown(change.what), words.figure(change.scale)
    if what == "policy":
        return Rescue(
            what=f"made the GradScaler grow slower, from a scale of {scale}", variant=what
        )
    known = {"explosion": "a gradient explosion", "nonfinite": "a non-finite loss"}
    cause = known.get(what, what)
    return Rescue(what=f"set the loss scale to {scale}", why=f"after {cause}" if cause else "")


def _resume(resumed: Resumed) -> Rescue:
    why, file = one_line(resumed.why), one_line(resumed.file)
    exact = "bit for bit" if resumed.exact else f"not exactly: {why or 'see the guide'}"
    step = words.number(resumed.step)
    return Rescue(what=f"resumed at step {step}, {exact}", why=f"from {file}" if file else "")


_OF_RECORDS: Mapping[type[Kind], Callable[[Any], Rescue]] = {
    RunStopped: _stop,
    RolledBack: _rollback,
    TrialResult: _trial,
    NewLossLevel: _level,
    NewTask: _new_task,
    ClippingSwitched: _clipping,
    LoweredRate: _lowered,
    Quarantined: _quarantine,
    Unreadable: _unreadable,
    BatchSplit: _split,
    LostStep: _lost_step,
    SkippedBatch: _skipped_batch,
    ScalerChange: _scaler,
    Resumed: _resume,
    CheckpointResult: _checkpoint,
    SnapshotTotals: _snapshots,
}
KINDS = tuple(record.kind for record in _OF_RECORDS)
"""The kinds of events described here, what matters most first."""
