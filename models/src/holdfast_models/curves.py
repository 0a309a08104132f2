"""What the record of a run says about learning: training and validation, step by step."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from holdfast import Run

__all__ = ["Curve", "Curves", "read_curves"]


class Curve(NamedTuple):
    """One number over the steps it was noted at; NaN where it was no number."""

    steps: list[int]
    values: list[float]


class Curves(NamedTuple):
    """By the name of the number."""

    training: Mapping[str, Curve]
    validation: Mapping[str, Curve]


_KINDS = ("numbers", "validation")


def read_curves(run_folder: str | os.PathLike[str]) -> Curves:
    """The events of a run as curves; of a step that was taken twice, the later numbers."""
    found: dict[str, dict[int, Mapping[str, Any]]] = {kind: {} for kind in _KINDS}
    run = Run.open(run_folder)
    for lane in run.lanes():
        path = run.stream_path("events", lane)
        if not path.is_file():
            continue
        with path.open(encoding="utf-8", errors="replace") as lines:
            for event in _events(lines):
                if event.get("rank") == 0:
                    found[event["kind"]][event["step"]] = event["data"]
    return Curves(*(_curves(found[kind]) for kind in _KINDS))


def _events(lines: Iterable[str]) -> Iterable[Mapping[str, Any]]:
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # the last line of a run that was killed may be cut
        if (
            isinstance(event, dict)
            and event.get("kind") in _KINDS
            and isinstance(event.get("step"), int)
            and isinstance(event.get("data"), dict)
        ):
            yield event


def _curves(notes: Mapping[int, Mapping[str, Any]]) -> dict[str, Curve]:
    names = dict.fromkeys(name for values in notes.values() for name in values)
    curves: dict[str, Curve] = {}
    for name in names:
        steps = sorted(step for step, values in notes.items() if name in values)
        curves[name] = Curve(steps, [_number(notes[step][name]) for step in steps])
    return curves


def _number(value: Any) -> float:
    """What is not finite is written as a word."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value)
