"""From rows and events of a run to points, notes and parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from ..config import yaml_values
from ..errors import HoldfastError
from ..records import records_of
from ..records.run import Start
from ..redaction import redact_command, redact_text
from ..report.rescue_words import rescue_of
from ..run import Rows, Run
from ..types import Event, Finding, place_words
from .base import About, Note, Point

SETTINGS_FILE = "train.yaml"
"""The settings of a recipe; other runs have theirs in ``run.json``."""

_PERFORMANCE = ("throughput_", "memory_", "gpu_", "step_time", "effective_batch_size")
# The rows have these for every step, the event only for every fiftieth.
_IN_ROWS = {"loss", "grad_norm", "learning_rate", "step_time", "skipped_steps", "memory_used_gb"}
_NORMS = {"grad_norm_max": "grad_norm_max", "p50": "grad_norm_p50", "p99": "grad_norm_p99"}
# Of the event of an epoch, those that nothing else has.
_OF_EPOCH = ("epoch_seconds", "data_wait_fraction", "memory_peak_gb", "process_rss_gb")
_GIGABYTE = 1e9
# Done in every run, however healthy.
_ROUTINE = {"checkpoint", "snapshots"}
_LONGEST = 500


class Windows:
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
    data = event.data
    if event.kind == "numbers":
        values = {_named(name): value for name, value in data.items() if name not in _IN_ROWS}
    elif event.kind == "validation":
        values = {f"val/{name}": value for name, value in data.items() if name != "best"}
    elif event.kind == "epoch":
        values = {f"perf/{name}": data[name] for name in _OF_EPOCH if name in data}
    elif event.kind == "gradient_norms" and "epoch" in data:
        values = {f"train/{new}": data[name] for name, new in _NORMS.items() if name in data}
    else:
        return
    numbers = {name: _number(value) for name, value in values.items()}
    known = {name: number for name, number in numbers.items() if number is not None}
    if known:
        yield Point(step=event.step, time=event.time, values=known)


def note_of(event: Event) -> Note | None:
    """What an event tells in a sentence; None for most."""
    data = event.data
    if event.kind == "health":
        text = f"{data.get('number')} {data.get('value')} is {data.get('state')}"
        return _note(event, "health", f"{text} ({data.get('band', '')})")
    if event.kind == "resume":
        return _note(event, "resume", f"resumed at step {event.step}")
    if event.kind == "settings_changed":
        return _note(event, "settings", ", ".join(map(str, data.get("changes", ()))))
    if event.kind == "exception":
        return _note(event, "exception", f"{data.get('type', '')}: {data.get('message', '')}")
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
    start, setup = next(records_of(Start, events), Start()), _first(events, "setup")
    resumed = next((event for event in events if event.kind == "resume"), None)
    params |= {
        "version.holdfast": str(meta.get("holdfast", "")),
        "version.python": str(meta.get("python", "")),
        "version.torch": start.torch,
        "device": start.device,
        "world_size": str(1 if start.world is None else start.world),
        "resumed": "no" if resumed is None else f"at step {resumed.step}",
    }
    params |= {f"setup.{key}": str(value) for key, value in setup.items()}
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


def _first(events: Sequence[Event], kind: str) -> Mapping[str, Any]:
    found = [event.data for event in events if event.kind == kind]
    return found[0] if found else {}


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


def _number(value: Any) -> float | None:
    """A number, also one that JSON has only as a word (NaN); None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except ValueError:
        return None


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
