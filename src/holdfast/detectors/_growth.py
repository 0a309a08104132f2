"""Shared by the leak detectors: what kind of value grows, and when the growth is believed.

A ``ValueGrowth`` is one measurement of a container, tensor or string that got larger every time; a
``GraphChain`` is one of a tensor whose graph reaches back over several steps. The kind of
content decides which detector reports them, so that exactly one does.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..records.memory import EvaluationGraphs, GraphChain, HeldValue, ValueGrowth, WorkerMemory
from ._window import Window
from .base import Detector

GRAPHS, STATES, TENSORS, OBJECTS = "graphs", "states", "tensors", "objects"


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


def substance(measured: HeldValue | WorkerMemory) -> str:
    """Kind of content of a value: graphs, a state on a graph, tensors or objects."""
    if isinstance(measured, GraphChain):
        return STATES if measured.fed else GRAPHS
    if not isinstance(measured, ValueGrowth):
        return ""
    if measured.graphs > 0:
        return GRAPHS
    return TENSORS if measured.tensor_bytes > measured.other_bytes else OBJECTS


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


def speed(grown: ValueGrowth) -> dict[str, float]:
    """How much and how fast, as evidence."""
    return {"rate": grown.rate, "size": float(grown.size), "heap_slope": grown.heap_slope}


def in_evaluation(window: Window, held: HeldValue) -> str:
    """MEM004, where an evaluation built the graphs that are kept, or the line is in one."""
    evaluated = any(
        (other.file, other.function) == (held.file, held.function)
        for event in window.events
        if (other := EvaluationGraphs.of(event)) is not None
    )
    return "MEM004" if held.in_evaluation or evaluated else ""
