"""Lines of a run folder as typed records: the one place that says what a reader may rely on.

The files were written by another process, maybe by another version, maybe by somebody else, and a
disk may have changed them. A line without a sound time, rank, step or kind is no record. Of the
data of an event and the evidence of a finding, keys that readers compute with hold what ``FORMS``
says or are missing, as if they had not been recorded; all others hold any JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from holdfast.records import read
from holdfast.types import Event, Finding

# Beyond the year 5000; a float of a step is exact up to here, too.
_LATEST, _MOST = 1e11, 2**53


def event_of(line: Mapping[str, Any]) -> Event:
    """An event; ``ValueError`` for a line that is none."""
    for key, is_sound in _EVENT.items():
        _require(key, is_sound(line.get(key, {})))
    kind, data = line["kind"], line.get("data", {})
    event = Event.from_dict({**line, "data": _sound(data, EVENT_FORMS)})
    return replace(event, record=read(kind, data))


def finding_of(line: Mapping[str, Any]) -> Finding:
    """A finding; ``ValueError`` for a line that is none."""
    line = dict(line)
    for key, is_sound in _FINDING.items():
        _require(key, key not in line or is_sound(line[key]))
    line["evidence"] = _sound(line.get("evidence", {}), EVIDENCE_FORMS)
    return Finding.from_dict(line)


def batch_of(line: Mapping[str, Any]) -> dict[str, Any]:
    """A batch; ``ValueError`` for a line that is none."""
    _require("step", _is_int(line.get("step")))
    return dict(_sound(line, BATCH_FORMS))


def meta_of(fields: dict[str, Any]) -> dict[str, Any]:
    """What ``run.json`` says, without what a reader could not use."""
    return dict(_sound(fields, META_FORMS))


def _require(key: str, sound: bool) -> None:
    if not sound:
        raise ValueError(f"its {key} makes no sense")


Form = Callable[[Any], bool]


def _sound(data: Mapping[str, Any], forms: Mapping[str, Form]) -> Mapping[str, Any]:
    """The same mapping, or a copy without the keys that hold something else."""
    odd = [key for key in data if key in forms and not forms[key](data[key])]
    return {key: value for key, value in data.items() if key not in odd} if odd else data


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST


def _is_count(value: Any) -> bool:
    return _is_int(value) and value >= 0


def _is_time(value: Any) -> bool:
    return _is_number(value) and not isinstance(value, str) and 0 <= value < _LATEST


def _is_number(value: Any) -> bool:
    """A number, or one that JSON has only as a word."""
    if isinstance(value, str):
        return value in ("NaN", "Infinity", "-Infinity")
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_map(value: Any) -> bool:
    return isinstance(value, dict)


def _list_of(each: Form) -> Form:
    return lambda value: isinstance(value, list) and all(map(each, cast("list[Any]", value)))


_EVENT: Mapping[str, Form] = {
    "time": _is_time, "rank": _is_count, "step": _is_int, "kind": _is_text, "data": _is_map,
}  # fmt: skip
_FINDING: Mapping[str, Form] = {
    "code": _is_text, "name": _is_text, "severity": _is_text, "message": _is_text,
    "advice": _is_text, "file": _is_text, "action": _is_text, "step": _is_int,
    "last_step": _is_int, "rank": _is_count, "line": _is_count, "evidence": _is_map,
    "confidence": lambda value: _is_number(value) and not isinstance(value, str),
}  # fmt: skip
EVENT_FORMS: Mapping[str, Form] = {
    "opt": _is_count, "optimizers": _is_count, "own": _is_number, "seconds": _is_number,
}  # fmt: skip
"""What readers compute with, in every kind of event."""
EVIDENCE_FORMS: Mapping[str, Form] = {
    "count": _is_count, "skipped": _is_count, "opt": _is_count, "steps": _list_of(_is_int),
    "restarts": _is_count, "cause": _is_map, "headline": _is_text, "diff": _is_text,
    "skipped_batches": _list_of(lambda value: isinstance(value, list)),
}  # fmt: skip
BATCH_FORMS: Mapping[str, Form] = {"bad": lambda value: isinstance(value, list)}
META_FORMS: Mapping[str, Form] = {
    "command": _list_of(_is_text), "settings": _is_map, "resumed_from": _is_map,
    "process": _is_map, "restarts": _list_of(_is_map), "script": _is_text, "created": _is_text,
}  # fmt: skip
