"""From rows and events of a run to points, notes and parameters."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from ..config import yaml_values
from ..errors import HoldfastError
from ..records import records_of
from ..records.crash import RaisedException
from ..records.recovery import SnapshotTotals
from ..records.resuming import CheckpointResult, Resumed
from ..records.run import Start
from ..records.trainer import (
    EpochEnded,
    GradientNormTotals,
    OutOfBand,
    SettingsChanged,
    TrainerSetup,
    TrainingNumbers,
    Validated,
)
from ..redaction import redact_command, redact_text
from ..report.action_words import rescue_of
from ..run import Rows, Run
from ..types import Event, Finding, place_words
from .base import About, Note, Point

SETTINGS_FILE = "train.yaml"
"""The settings of a recipe; other runs have theirs in ``run.json``."""

_PERFORMANCE = ("throughput_", "memory_", "gpu_", "step_time", "effective_batch_size")
# The rows have these for every step, the event only for every fiftieth.
_IN_ROWS = {"loss", "grad_norm", "learning_rate", "step_time", "skipped_steps", "memory_used_gb"}
_GIGABYTE = 1e9
# Done in every run, however healthy.
_ROUTINE = {CheckpointResult.kind, SnapshotTotals.kind}
_LONGEST = 500


class RowWindows:
    """Rows of the first optimizer, averaged over so many steps each.

    The borders follow from the step alone, so that another call makes the same points.
    """

    def __init__(self, every: int, after: int, skipped: int = 0) -> None:
        self._every = every
        self.step = after
        """The last row that is in a point."""
        self.skipped = skipped
        self._rows: Rows | None = None
        self._before = math.nan

    def add(self, rows: Rows) -> None:
        """Rows in the order of their steps; those already in a point are passed over."""
        fresh = rows[(rows["step"] > self._newest) & (rows["opt"] == 0)]
        if len(fresh):
            self._rows = fresh if self._rows is None else np.concatenate([self._rows, fresh])

    def take(self, *, partial: bool) -> Iterator[Point]:
        """The points that are complete; with ``partial`` the last, short one too."""
        rows, self._rows = self._rows, None
        if rows is None:
            return
        borders = np.flatnonzero(np.diff(rows["step"] // self._every)) + 1
        parts = np.split(rows, borders)
        if not partial and (int(parts[-1]["step"][-1]) + 1) % self._every:
            self._rows = parts.pop()
        for part in parts:
            yield self._point(part, int(part["step"][-1]))

    @property
    def _newest(self) -> int:
        return self.step if self._rows is None else int(self._rows["step"][-1])

    def _point(self, rows: Rows, last: int) -> Point:
        self.step = last
        self.skipped += int(np.nansum(rows["skipped"]))
        times = np.concatenate([[self._before], rows["time"]])
        self._before = float(rows["time"][-1])
        taken = rows[rows["skipped"] == 0]
        values = {
            "train/loss": _mean(taken, "loss") if len(taken) else math.nan,
            "train/grad_norm": _mean(taken, "grad_norm"),
            "train/learning_rate": float(rows["lr"][-1]),
            "train/skipped_steps": float(self.skipped),
            "perf/step_time": _median(np.diff(times)),
            "perf/data_wait": _mean(rows, "data_wait"),
            "perf/memory_used_gb": _memory(rows) / _GIGABYTE,
        }
        # A loss that is not finite is news; anything else was not measured.
        known = {k: v for k, v in values.items() if math.isfinite(v) or k == "train/loss"}
        return Point(step=last + 1, time=float(rows["time"][-1]), values=known)


def points_of(event: Event) -> Iterator[Point]:
    """The numbers that an event holds."""
    known = {name: value for name, value in _numbers_of(event).items() if value is not None}
    if known:
        yield Point(step=event.step, time=event.time, values=known)


def _numbers_of(event: Event) -> Mapping[str, float | None]:
    if (noted := TrainingNumbers.of(event)) is not None:
        return {_named(name): noted.values[name] for name in noted.values if name not in _IN_ROWS}
    if (validated := Validated.of(event)) is not None:
        return {f"val/{name}": value for name, value in validated.values.items()}
    if (epoch := EpochEnded.of(event)) is not None:
        # Those that nothing else has.
        return {
            "perf/epoch_seconds": epoch.epoch_seconds,
            "perf/data_wait_fraction": epoch.data_wait_fraction,
            "perf/memory_peak_gb": epoch.memory_peak_gb,
            "perf/process_rss_gb": epoch.process_rss_gb,
        }
    norms = GradientNormTotals.of(event)
    if norms is None or norms.epoch is None:
        return {}
    return {
        "train/grad_norm_max": norms.grad_norm_max,
        "train/grad_norm_p50": norms.p50,
        "train/grad_norm_p99": norms.p99,
    }


def note_of(event: Event) -> Note | None:
    """What an event tells in a sentence; None for most."""
    if (found := OutOfBand.of(event)) is not None:
        text = f"{found.number} {json.dumps(found.value)} is {found.state} ({found.band})"
        return _note(event, "health", text)
    if event.kind == Resumed.kind:
        return _note(event, "resume", f"resumed at step {event.step}")
    if (changed := SettingsChanged.of(event)) is not None:
        return _note(event, "settings", ", ".join(changed.changes))
    if (raised := RaisedException.of(event)) is not None:
        return _note(event, raised.kind, f"{raised.type}: {raised.message}")
    rescue = None if event.kind in _ROUTINE else rescue_of(event)
    if rescue is None:
        return None
    return _note(event, "action", f"{rescue.what}{': ' * bool(rescue.why)}{rescue.why}")


def finding_note(finding: Finding, time: float) -> Note:
    """A finding in a sentence."""
    where = f" ({place_words(finding.file, finding.line)})" if finding.file else ""
    text = redact_text(f"{finding.code} {finding.message}{where}")
    return Note(step=finding.step, time=time, kind="finding", text=text[:_LONGEST])


def about_run(
    run: Run, events: Sequence[Event], *, experiment: str | None, name: str | None, began: float
) -> About:
    """What is known of a run once it has begun."""
    meta = run.meta
    params = dict(flat(_settings(run)))
    start = next(records_of(Start, events), Start())
    setup = next(filter(None, map(TrainerSetup.of, events)), None)
    resumed = next((event for event in events if event.kind == Resumed.kind), None)
    params |= {
        "version.holdfast": str(meta.get("holdfast", "")),
        "version.python": str(meta.get("python", "")),
        "version.torch": start.torch,
        "device": start.device,
        "world_size": str(1 if start.world is None else start.world),
        "resumed": "no" if resumed is None else f"at step {resumed.step}",
    }
    chosen = {} if setup is None else setup.to_dict()
    params |= {f"setup.{key}": str(value) for key, value in chosen.items() if value is not None}
    tags = {
        "holdfast.run": str(run.path.resolve()),
        "holdfast.script": str(meta.get("script", "")),
        "holdfast.command": " ".join(map(str, meta.get("command", ()))),
    }
    script = str(meta.get("script") or "holdfast").removesuffix(".py")
    return About(
        name=name or run.path.resolve().name,
        experiment=experiment or script,
        began=began,
        params=_without_secrets(params),
        tags=_without_secrets(tags),
    )


def flat(data: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as ``a.b.c`` and text."""
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from flat(cast("Mapping[str, Any]", value), f"{above}{key}.")
        else:
            yield f"{above}{key}", "null" if value is None else str(cast("object", value))


def _settings(run: Run) -> Mapping[str, Any]:
    path = run.path / SETTINGS_FILE
    if path.is_file():
        try:
            found = yaml_values.read(path)
        except HoldfastError:
            found = None
        if isinstance(found, Mapping):
            return cast("Mapping[str, Any]", found)
    return {"holdfast": run.meta.get("settings", {})}


def _without_secrets(values: Mapping[str, str]) -> dict[str, str]:
    shown = {key: redact_command([f"{key}={value}"])[0] for key, value in values.items()}
    return {key: text.partition("=")[2][:_LONGEST] for key, text in shown.items() if text}


def _named(name: str) -> str:
    return f"{'perf' if name.startswith(_PERFORMANCE) else 'train'}/{name}"


def _note(event: Event, kind: str, text: str) -> Note:
    text = redact_text(" ".join(text.split()))[:_LONGEST]
    return Note(step=event.step, time=event.time, kind=kind, text=text)


def _finite(values: Iterable[float]) -> np.ndarray:
    numbers = np.asarray(values, float)
    return numbers[np.isfinite(numbers)]


def _mean(rows: Rows, column: str) -> float:
    numbers = _finite(rows[column])
    return float(numbers.mean()) if len(numbers) else math.nan


def _median(values: np.ndarray) -> float:
    numbers = _finite(values)
    return float(np.median(numbers)) if len(numbers) else math.nan


def _memory(rows: Rows) -> float:
    for column in ("mem_allocated", "rss"):
        numbers = _finite(rows[column])
        if len(numbers) and numbers.max() > 0:
            return float(numbers.max())
    return math.nan
