"""Kinds of events of lost time: compilations that came again, and what faster forms save.

Those that name lines of the script by number are in ``lines``.
"""

from __future__ import annotations

from .base import Kind


class Recompiled(Kind, kind="recompile"):
    """A function that ``torch.compile`` has compiled again."""

    file: str
    """The script's; empty where nobody saw the line."""
    line: int
    """What changes the attribute that a guard asks for; else where it was called when it was
    compiled last. 0 where it is not known."""
    code: str
    """The statement there."""
    excerpt: tuple[tuple[int, str], ...] = ()
    """The lines around it; empty in records of earlier versions."""
    name: str
    """Of the function."""
    defined: str
    """Its file and line, as ``model.py:12``."""
    times: int
    """Compilations after the first."""
    same: int
    """Those of them for the guard that failed most often, whatever its numbers."""
    seconds: float
    """All of them together."""
    guard: str
    """The one that failed last, in dynamo's words."""
    trained: float = 0.0
    """Seconds of the steps so far."""


class TimeSaved(Kind, kind="spared"):
    """What faster forms save of the time that torch takes for a step, on the host."""

    seconds: float
    """Saved per step of an optimizer, never less than nothing."""
    own: float
    """Seconds that such a step takes in torch's own way."""
    samples: int
    """Steps timed of the way that has fewer of them."""
