"""What a crash left in its finding: the values of the line, the calls, the traceback.

It comes from a file that another process wrote: fields of the wrong type are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ..types import Finding, place_words
from . import words

VALUE_COLUMNS = ("value", "what it is", "dtype", "device", "more")
_VALUES = 24
_FRAMES = 24
_TEXT = 160


@dataclass(frozen=True, kw_only=True)
class CrashDetails:
    """Everything about a crash besides its line and its cause."""

    operands: tuple[tuple[str, ...], ...] = ()
    """Values on the failing line and in the call of torch, as rows of ``VALUE_COLUMNS``."""
    variables: tuple[tuple[str, ...], ...] = ()
    """Other variables of the function."""
    frames: tuple[tuple[str, str, str], ...] = ()
    """Place, function and statement of the script's own calls, outermost first."""
    traceback: str = ""
    sample_file: str = ""
    called_from: str = ""

    @property
    def brief(self) -> str:
        """The values of the line in one sentence."""
        shown = [f"{row[0]} {row[1]}" for row in self.operands[:6]]
        return ", ".join(shown)


def crash_of(finding: Finding) -> CrashDetails | None:
    """The details of a finding about a crash; None for any other."""
    evidence = finding.evidence
    traceback = evidence.get("traceback")
    if not isinstance(traceback, str) or "frames" not in evidence:
        return None
    given = [*_list(evidence.get("operands")), *_inner(evidence)]
    operands = tuple(map(_row, given))[:_VALUES]
    known = {row[0] for row in operands}
    others = [row for row in map(_row, _list(evidence.get("variables"))) if row[0] not in known]
    return CrashDetails(
        operands=operands,
        variables=tuple(others[:_VALUES]),
        frames=tuple(_frame(_mapping(f)) for f in _list(evidence.get("frames"))[:_FRAMES]),
        traceback=traceback,
        sample_file=_text(evidence.get("sample_file")),
        called_from=_text(evidence.get("called_from")),
    )


def _inner(evidence: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The layer at work, and what the failing call of torch was given."""
    inner = _mapping(evidence.get("inner"))
    layer = _mapping(evidence.get("layer_at_work"))
    function = _text(inner.get("function"))
    given = [each for each in map(_mapping, _list(inner.get("values"))) if each]
    return [
        *([layer] if layer else []),
        *({**v, "name": f"{function}: {v.get('name')}"} for v in given if v.get("name") != "self"),
    ]


def _row(given: object) -> tuple[str, ...]:
    data = _mapping(given)
    shape = data.get("shape")
    more: list[str] = []
    if isinstance(shape, list | tuple):
        what = str(tuple(cast("list[Any]", shape)))
        if isinstance(data.get("min"), int) and isinstance(data.get("max"), int):
            more.append(f"{data['min']} to {data['max']}")
        more += ["requires grad"] if data.get("grad") is True else []
        more += [_text(data.get("made_by"))] if data.get("made_by") else []
    elif data.get("module"):
        what = _text(data.get("repr")) or _text(data.get("module"))
        made = _mapping(data.get("made"))
        more += (
            [f"made at {place_words(_text(made.get('file')), made.get('line'))}"] if made else []
        )
    else:
        what = _text(data.get("value"))
        more += [_text(data.get("type"))]
    cells = (_text(data.get("name")), what, _text(data.get("dtype")), _text(data.get("device")))
    return tuple(words.clip(cell, _TEXT) for cell in (*cells, ", ".join(filter(None, more))))


def _frame(data: Mapping[str, Any]) -> tuple[str, str, str]:
    return (
        place_words(_text(data.get("file")), data.get("line")),
        _text(data.get("function")),
        words.clip(_text(data.get("code")), _TEXT),
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    return cast("list[Any]", value) if isinstance(value, list | tuple) else ()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
