"""Shared by the leak detectors: what kind of value grows, and when the growth is believed.

A ``growth`` event is one measurement of a container, tensor or string that got larger every time; a
``graph_chain`` event is one of a tensor whose graph reaches back over several steps. The kind of
content decides which detector reports them, so that exactly one does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..types import Event
from ._events import number
from ._memory import MemoryDetector
from ._window import Window
from .base import Detector

GRAPHS, STATE, TENSORS, OBJECTS = "graphs", "state", "tensors", "objects"


@dataclass(frozen=True, kw_only=True)
class GrowthOptions(Detector.Options):
    """Measured together over all collections: detection_cpu_arm_2026-11-16.md; bounds are guesses.

    Attributes:
        least: bytes per step below which it is a log.
        clear: bytes per step above which it is believed at once.
        small: steps of growth after which less than ``clear`` is believed.
        steady: growth at less than this share of its former rate levels off.
        passes: passes over the data to wait for where the source empties the value, checks its
            content before adding, or creates it again with each call of its function.
        doubtful: steps instead of these passes where the size of the data is not known.
        apart: in that case, most steps between the last two measurements: it may have ended.
        missed: a cache is believed to miss always where it has this many items per hit.
        queue: a queue of tensors with graphs of at most this size is intended.
    """

    least: float = 8 * 1024.0
    clear: float = 48 * 1024.0
    small: int = 40
    steady: float = 0.4
    passes: int = 2
    doubtful: int = 96
    apart: int = 6
    missed: float = 20.0
    queue: int = 512


def substance(event: Event) -> str:
    """Kind of content of an event's value: graphs, state, tensors or objects."""
    data = event.data
    if event.kind == "graph_chain":
        return STATE if data.get("fed") or data.get("through_model") else GRAPHS
    if number(event, "graphs") > 0:
        return STATE if data.get("single") and data.get("through_model") else GRAPHS
    return TENSORS if number(event, "tensor_bytes") > number(event, "other_bytes") else OBJECTS


def grows_for_ever(event: Event, options: GrowthOptions) -> bool:
    """Whether a value grows that the script does not bound and that is no log."""
    data = event.data
    if not _unbounded(event, options):
        return False
    bytes_, steps = number(event, "bytes"), number(event, "steps")
    if bytes_ < options.least or (bytes_ < options.clear and steps < options.small):
        return False
    if data.get("single") and not _made_of_itself(data, graphs=number(event, "graphs") > 0):
        return False
    hits = number(event, "hits")
    if hits == hits:
        return hits * options.missed < number(event, "size") and steps >= options.small
    kept_small = data.get("shrinks") or data.get("tested") or data.get("renewed")
    if not kept_small or data.get("new_keys"):
        return True
    patience = options.passes * number(event, "pass_steps") or options.doubtful
    return number(event, "apart") <= options.apart and steps >= patience


def keeps_graphs(event: Event, options: GrowthOptions, patience: int) -> bool:
    """Whether a container gets more and more tensors with graphs.

    Args:
        event: the measurement.
        options: what bounds it.
        patience: steps after which a list that backward uses and that is emptied is believed.
    """
    data = event.data
    spans_steps = data.get("consumed") and (data.get("shrinks") or data.get("renewed"))
    enough = patience if spans_steps else 0
    return _unbounded(event, options) and number(event, "steps") >= enough


def _unbounded(event: Event, options: GrowthOptions) -> bool:
    bound = number(event, "bound")
    short = bound <= options.queue if number(event, "graphs") > 0 else True
    levels_off = number(event, "steady") < options.steady
    return not (levels_off or event.data.get("capped") or (bound > 0 and short))


def _made_of_itself(data: Mapping[str, Any], *, graphs: bool) -> bool:
    """Whether one value is concatenated to itself, and not a new one each time."""
    seen = data.get("seen") == "trace" and data.get("how") != "item"
    return seen and (graphs or bool(data.get("itself")))


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
