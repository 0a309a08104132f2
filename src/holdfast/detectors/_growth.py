"""Shared by the leak detectors: what kind of value grows, and when the growth is believed.

A ``growth`` event is one measurement of a container, tensor or string that got larger every time; a
``graph_chain`` event is one of a tensor whose graph reaches back over several steps. The kind of
content decides which detector reports them, so that exactly one does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..types import Event
from ._events import number
from ._memory import MemoryDetector
from ._window import Window
from .base import Detector

GRAPHS, TENSORS, OBJECTS = "graphs", "tensors", "objects"


@dataclass(frozen=True, kw_only=True)
class GrowthOptions(Detector.Options):
    """Measured together over all collections: detection_cpu_arm_2026-11-16.md; bounds are guesses.

    Attributes:
        least: bytes per step below which it is a log.
        clear: bytes per step above which it is believed at once.
        small: steps of growth after which less than ``clear`` is believed.
        passes: passes over the data to wait for where the source empties the value or checks its
            content before adding.
        doubtful: steps instead of these passes where the size of the data is not known.
        queue: a queue of tensors with graphs of at most this size is intended.
    """

    least: float = 8 * 1024.0
    clear: float = 48 * 1024.0
    small: int = 40
    passes: int = 2
    doubtful: int = 96
    queue: int = 512


def substance(event: Event) -> str:
    """Kind of content of a growing value: graphs, tensors or objects."""
    if number(event, "graphs") > 0:
        return GRAPHS
    return TENSORS if number(event, "tensor_bytes") > number(event, "other_bytes") else OBJECTS


def grows_for_ever(event: Event, options: GrowthOptions) -> bool:
    """Whether a value grows that the script does not bound and that is no log."""
    data = event.data
    bytes_, steps = number(event, "bytes"), number(event, "steps")
    if not unbounded(event, options) or bytes_ < options.least:
        return False
    if bytes_ < options.clear and steps < options.small:
        return False
    # One value that is not made of its former self is a new one each time.
    if data.get("single") and not data.get("itself"):
        return False
    kept_small = data.get("shrinks") or data.get("tested")
    patience = options.passes * number(event, "pass_steps") or options.doubtful
    return not kept_small or steps >= patience


def unbounded(event: Event, options: GrowthOptions) -> bool:
    """Whether neither the script nor the kind of the value bounds it."""
    bound = number(event, "bound")
    bounded = bound > 0 and (bound <= options.queue or not number(event, "graphs"))
    return not (event.data.get("capped") or bounded)


class GrowthDetector(MemoryDetector):
    """Base class: reports growing values with one kind of content."""

    kinds = ("growth",)
    made_of: ClassVar[str]
    """The kind of content it reports."""

    @dataclass(frozen=True, kw_only=True)
    class Options(GrowthOptions):
        """Thresholds of all leak detectors."""

    def believes(self, event: Event) -> bool:
        """Whether it grows without a bound."""
        return substance(event) == self.made_of and grows_for_ever(event, self.options)


def in_evaluation(window: Window, event: Event) -> str:
    """MEM004, where an evaluation built the graphs that are kept, or the line is in one."""
    data = event.data
    place = data.get("file"), data.get("function")
    evaluated = any(
        (other.data.get("file"), other.data.get("function")) == place
        for other in window.events
        if other.kind == "evaluation_graphs"
    )
    return "MEM004" if data.get("in_evaluation") or evaluated else ""
