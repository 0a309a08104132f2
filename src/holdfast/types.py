"""The nouns that everything else uses: Step, Event, Finding and how bad a Finding is.

A ``Step`` is one optimizer step as it was measured, an ``Event`` something that happened
once, a ``Finding`` a fault with its evidence. All are plain frozen data of the standard
library, so that a report can be read on a laptop that has never seen torch.

    >>> finding = Finding(
    ...     code="NUM001", name="nonfinite_loss", severity=Severity.ERROR, step=412,
    ...     message="loss is NaN at step 412", advice="holdfast explain NUM001",
    ... )
    >>> finding.severity >= Severity.WARNING
    True
    >>> Finding.from_dict(finding.to_dict()) == finding
    True
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any, Self


class Severity(IntEnum):
    """How much a finding matters; ordered, so that ``>= WARNING`` reads as it should."""

    INFO = 10
    WARNING = 20
    ERROR = 30

    @property
    def word(self) -> str:
        """The lower-case name used in files and on screens."""
        return self.name.lower()

    @classmethod
    def parse(cls, word: str) -> Severity:
        """Read the word back; an unknown word is a ``KeyError``."""
        return cls[word.upper()]


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One optimizer step: its number, its wall-clock time and one float per column."""

    step: int
    time: float
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that happened once: a start, a skipped step, a signal, a failure of ours."""

    time: float
    rank: int
    step: int
    kind: str
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    record: object = field(default=None, compare=False, repr=False)
    """What the data are as a record of this kind (see ``records``), where a reader has made one."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for one line of ``events.rN.jsonl``; ``data`` is not copied."""
        return {
            "time": self.time,
            "rank": self.rank,
            "step": self.step,
            "kind": self.kind,
            "data": self.data,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from one line; keys of later versions are ignored."""
        known = {k: data[k] for k in ("time", "rank", "step", "kind", "data") if k in data}
        return cls(**known)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A fault that was seen: what, where, how sure, and what to do about it.

    ``step`` and ``last_step`` bound the steps concerned; ``evidence`` holds the numbers
    that back the claim, ``evidence["count"]`` how many steps it was seen on.
    """

    code: str
    name: str
    severity: Severity
    step: int
    message: str
    advice: str
    last_step: int = -1
    rank: int = 0
    file: str = ""
    line: int = 0
    action: str = ""
    confidence: float = 1.0
    evidence: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def key(self) -> tuple[str, int, str]:
        """What makes two findings of a rank the same one: code, optimizer, layer (or other key)."""
        where = self.evidence.get("layer") or self.evidence.get("key", "")
        optimizer = self.evidence.get("opt", 0)
        return self.code, int(optimizer) if isinstance(optimizer, int | float) else 0, str(where)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for one line of ``findings.rN.jsonl``."""
        data = asdict(self)
        data["severity"] = self.severity.word
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild from one line; keys of later versions are ignored."""
        known = {k: v for k, v in data.items() if k in cls.__dataclass_fields__}
        if not isinstance(known.get("evidence", {}), Mapping):
            raise TypeError(f"evidence is {type(known['evidence']).__name__}, not a mapping")
        known["severity"] = Severity.parse(known["severity"])
        return cls(**known)


def place_words(file: str, line: object) -> str:
    """A line of code as a person is told it.

    >>> place_words("train.py", 12), place_words("cell 3", 6)
    ('train.py:12', 'cell 3, line 6')
    """
    cell = file.startswith("cell ") and file[5:].isdecimal()
    return f"{file}, line {line}" if cell else f"{file}:{line}"
