"""Wording of recovery actions, the same in live lines, in the report and on the page.

step 977  rolled back 8 steps: loss 2.31 → 61, their data is skipped              [OPT001]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ..harmless import visible
from ..records import Kind
from ..records.steps import Clipping, Quarantined, ScalerChange, SkippedBatch, Unreadable
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
    describe = _WORDS.get(event.kind)
    return None if describe is None else describe(event)


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


def _count(data: Mapping[str, Any], name: str) -> int:
    value = number_in(data, name)
    return int(value) if math.isfinite(value) else 0


def _rollback(data: Mapping[str, Any]) -> Rescue:
    loss, usual = number_in(data, "loss"), number_in(data, "usual")
    why = text_in(data, "why")
    reason = {
        "loss": f"loss {words.figure(usual)} → {words.figure(loss)}",
        "nonfinite": "loss or gradients were non-finite",
        "weights": "weights were non-finite",
    }.get(why, why)
    factor, ms = number_in(data, "lr_factor"), number_in(data, "ms")
    parts = [
        reason,
        "their data is skipped",
        f"learning rate × {words.figure(factor)}" if factor < 1 else "",
        "optimizer state reset" if data.get("moments_reset") is True else "",
    ]
    left = words.plural(_count(data, "left"), "more rollback")
    back = [
        f"back to step {words.number(_count(data, 'to'))}" if "to" in data else "",
        f"it took {words.duration(ms / 1000)}" if math.isfinite(ms) else "",
        f"{left} allowed" if "left" in data else "",
    ]
    what = f"rolled back {words.plural(_count(data, 'steps'), 'step')}"
    if "validation" in data:
        value = words.figure(number_in(data, "validation"))
        what = f"went back to the best state by validation ({value})"
    return Rescue(
        what=what,
        why=", ".join(filter(None, parts)),
        after=", ".join(filter(None, back)),
        code=text_in(data, "code"),
    )


def _trial(data: Mapping[str, Any]) -> Rescue:
    tried, usual = (number_in(data, name) for name in ("tried", "usual"))
    losses = f"{words.figure(tried)}, baseline {words.figure(usual)}"
    verdict = data.get("verdict")
    if verdict == "weights":
        why = f"with the older weights the loss is {losses}: the weights were damaged"
        return Rescue(what="kept the rollback", why=why)
    why = f"the older weights do no better: loss {losses}"
    if verdict == "nonfinite":
        why = "older weights give values that are not finite, too: the cause is not in the weights"
    elif verdict == "data" and usual < tried < math.inf:
        too = f"{words.figure(tried)} too, baseline {words.figure(usual)}"
        why = f"with the older weights the loss is {too}: the data has changed"
    code = text_in(data, "cause")
    return Rescue(what="undid the rollback", why=why, variant="undone", code=code)


def _level(data: Mapping[str, Any]) -> Rescue:
    before, after = number_in(data, "before"), number_in(data, "after")
    return Rescue(
        what="reset the loss baseline",
        why=f"baseline {words.figure(before)} → {words.figure(after)}, and the loss stays there",
    )


def _new_task(data: Mapping[str, Any]) -> Rescue:
    return Rescue(what="forgot its baselines", why="it was told that a new task begins")


def _clipping(change: Clipping) -> Rescue:
    why = shown(change.why)
    if not change.on:
        return Rescue(what="ended automatic clipping", why=why, variant="off")
    limit = words.figure(math.nan if change.limit is None else change.limit)
    return Rescue(what=f"began to clip gradients at a norm of {limit}", why=why)


def _lowered(data: Mapping[str, Any]) -> Rescue:
    norm, usual = number_in(data, "norm"), number_in(data, "usual")
    return Rescue(
        what=f"multiplied the learning rate by {words.figure(number_in(data, 'factor'))}",
        why=f"gradient norm {words.figure(usual)} → {words.figure(norm)}",
        code="OPT002",
    )


def _stop(data: Mapping[str, Any]) -> Rescue:
    saved = text_in(data, "checkpoint")
    state = f"the last good state is in {saved}" if saved else "no good state could be saved"
    return Rescue(
        what="stopped the run",
        why="; ".join(filter(None, [text_in(data, "why"), state])),
        code=text_in(data, "code"),
    )


def _checkpoint(data: Mapping[str, Any]) -> Rescue:
    if "failed" in data:
        what = "could not save a checkpoint"
        return Rescue(what=what, why=text_in(data, "failed"), variant="failed")
    seconds = number_in(data, "seconds")
    parts = [
        text_in(data, "file"),
        words.size(number_in(data, "bytes")) if "bytes" in data else "",
        f"{words.duration(seconds)} in the background" if math.isfinite(seconds) else "",
    ]
    return Rescue(what="saved a checkpoint", why=", ".join(filter(None, parts)))


def _snapshots(data: Mapping[str, Any]) -> Rescue:
    every, ms, dropped = _count(data, "every"), number_in(data, "ms"), _count(data, "dropped")
    parts = [
        f"{words.number(_count(data, 'count'))} taken",
        f"the last {words.plural(every, 'step')} apart" if every else "",
        words.size(number_in(data, "bytes")) if "bytes" in data else "",
        f"{words.duration(ms / 1000)} each" if math.isfinite(ms) else "",
        f"{words.number(dropped)} dropped" if dropped else "",
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


def _split(data: Mapping[str, Any]) -> Rescue:
    module, parts = text_in(data, "module") or "the model", _count(data, "parts")
    if parts < 2:
        return Rescue(
            what=f"could not split the batch of {module}",
            why=text_in(data, "refused"),
            code="MEM008",
            variant="refused",
        )
    why, seconds = text_in(data, "why"), number_in(data, "seconds")
    samples = words.plural(_count(data, "samples"), "sample")
    parts_of = [
        f"out of memory in {text_in(data, 'phase') or 'a pass'}",
        f"approximate because {why}" if why else "exact",
        f"{words.duration(seconds)} lost" if seconds > 0 else "",
    ]
    return Rescue(
        what=f"split batches of {samples} into {words.number(parts)} parts",
        why=", ".join(filter(None, parts_of)),
        after="each part computes its forward pass twice; --no-split-batches switches this off",
        code="MEM008",
    )


def _lost_step(data: Mapping[str, Any]) -> Rescue:
    count = _count(data, "batches")
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


def _resume(data: Mapping[str, Any]) -> Rescue:
    why, file = text_in(data, "why"), text_in(data, "file")
    exact = "bit for bit" if data.get("exact") is True else f"not exactly: {why or 'see the guide'}"
    step = words.number(_count(data, "step"))
    return Rescue(what=f"resumed at step {step}, {exact}", why=f"from {file}" if file else "")


def _of_data(words_of: Callable[[Mapping[str, Any]], Rescue]) -> Callable[[Event], Rescue | None]:
    return lambda event: words_of(event.data)  # Until all kinds are typed.


def _of_record(
    kind: type[K], words_of: Callable[[K], Rescue]
) -> tuple[str, Callable[[Event], Rescue | None]]:
    def describe(event: Event) -> Rescue | None:
        record = kind.of(event)
        return None if record is None else words_of(record)

    return kind.kind, describe


_WORDS: Mapping[str, Callable[[Event], Rescue | None]] = dict(
    [
        ("stop", _of_data(_stop)),
        ("rollback", _of_data(_rollback)),
        ("trial", _of_data(_trial)),
        ("level", _of_data(_level)),
        ("new_task", _of_data(_new_task)),
        _of_record(Clipping, _clipping),
        ("lowered_lr", _of_data(_lowered)),
        _of_record(Quarantined, _quarantine),
        _of_record(Unreadable, _unreadable),
        ("batch_split", _of_data(_split)),
        ("lost_step", _of_data(_lost_step)),
        _of_record(SkippedBatch, _skipped_batch),
        _of_record(ScalerChange, _scaler),
        ("resume", _of_data(_resume)),
        ("checkpoint", _of_data(_checkpoint)),
        ("snapshots", _of_data(_snapshots)),
    ]
)
KINDS = tuple(_WORDS)
"""The kinds of events described here, what matters most first."""
