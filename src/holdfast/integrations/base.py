"""What a tracker hands to a sink, and what a sink does with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

LARGEST = 64 << 20
"""Bytes of a file that is handed over."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """Numbers of one optimizer step, by name: ``train/loss``, ``val/loss``, ``perf/step_time``."""

    step: int
    time: float
    values: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Note:
    """Something that happened, in a sentence: a finding, an action, a number out of its band."""

    step: int
    time: float
    kind: str
    text: str


@dataclass(frozen=True, kw_only=True)
class About:
    """What a run is: settings and versions, flat and as text, without secrets."""

    name: str
    experiment: str
    began: float
    params: Mapping[str, str]
    tags: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a run ended, and the files that it leaves."""

    word: str
    """finished, failed, killed, stopped or interrupted."""
    time: float
    tags: Mapping[str, str]
    files: Sequence[Path] = ()
    pictures: Sequence[Path] = ()


@dataclass(kw_only=True)
class Progress:
    """How far a sink has come in a run; kept in the run folder between two calls."""

    target: str = ""
    lanes: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """Of each lane the last step (``step``), the number of events (``events``), the ``epoch``."""
    findings: list[str] = field(default_factory=list[str])
    ended: bool = False
    own: dict[str, Any] = field(default_factory=dict[str, Any])
    """What the sink itself has to remember."""


class Sink(Protocol):
    """One tracker. What it cannot deliver it keeps, or tells; it never raises for that."""

    kind: str
    target: str
    """Where it writes: a sink with another target begins from the start."""

    @property
    def waiting(self) -> bool:
        """Whether something is kept that could not be delivered."""
        ...

    def begin(self, about: About, own: dict[str, Any]) -> None:
        """A run, or a run that goes on; ``own`` is kept for the next call."""
        ...

    def write(self, points: Sequence[Point], notes: Sequence[Note]) -> None:
        """What is new."""
        ...

    def end(self, ending: Ending) -> None:
        """The run is over, for now."""
        ...

    def close(self) -> None:
        """Let go of files."""
        ...
