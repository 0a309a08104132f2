"""Shared by the leak detectors: what kind of value grows, and when the growth is believed.

A ``ValueGrowth`` is one measurement of a container, tensor or string that got larger every time; a
``GraphChain`` is one of a tensor whose graph reaches back over several steps. The kind of
content decides which detector reports them, so that exactly one does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..records.memory import EvaluationGraphs, GraphChain, HeldValue, ValueGrowth
from ..types import Severity
from ._memory import VariableDetector
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


def substance(grown: ValueGrowth) -> str:
    """Kind of content of a growing value: graphs, tensors or objects."""
    if grown.graphs > 0:
        return GRAPHS
    return TENSORS if grown.tensor_bytes > grown.other_bytes else OBJECTS


def grows_for_ever(grown: ValueGrowth, options: GrowthOptions) -> bool:
    """Whether a value grows that the script does not bound and that is no log."""
    if not unbounded(grown, options) or grown.bytes < options.least:
        return False
    if grown.bytes < options.clear and grown.steps < options.small:
        return False
    # One value that is not made of its former self is a new one each time.
    if grown.single and not grown.itself:
        return False
    kept_small = grown.shrinks or grown.tested
    patience = options.passes * grown.pass_steps or options.doubtful
    return not kept_small or grown.steps >= patience


def unbounded(grown: ValueGrowth, options: GrowthOptions) -> bool:
    """Whether neither the script nor the kind of the value bounds it."""
    bounded = grown.bound > 0 and (grown.bound <= options.queue or not grown.graphs)
    return not (grown.capped or bounded)


class GrowthDetector(VariableDetector[ValueGrowth]):
    """Base class: reports growing values with one kind of content."""

    kinds = (ValueGrowth,)
    made_of: ClassVar[str]
    """The kind of content it reports."""

    @dataclass(frozen=True, kw_only=True)
    class Options(GrowthOptions):
        """Thresholds of all leak detectors."""

    def believes(self, measured: ValueGrowth) -> bool:
        """Whether it grows without a bound."""
        return substance(measured) == self.made_of and grows_for_ever(measured, self.options)


def speed(grown: ValueGrowth) -> dict[str, float]:
    """How much and how fast, as evidence."""
    return {"rate": grown.rate, "size": float(grown.size), "heap_slope": grown.heap_slope}


def weight_of(measured: HeldValue, severity: Severity) -> Severity:
    """How bad it is: an error where it has ended the run."""
    ended = isinstance(measured, GraphChain) and measured.killed
    return Severity.ERROR if ended else severity


def in_evaluation(window: Window, held: HeldValue) -> str:
    """MEM004, where an evaluation built the graphs that are kept, or the line is in one."""
    evaluated = any(
        (other.file, other.function) == (held.file, held.function)
        for event in window.events
        if (other := EvaluationGraphs.of(event)) is not None
    )
    return "MEM004" if held.in_evaluation or evaluated else ""
