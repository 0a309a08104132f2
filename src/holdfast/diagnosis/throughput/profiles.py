"""Lines and what they cost, as profiles of the time measure them."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from ...records.lines import StepCounts
from ...source.frames import frames_from
from ...source.loops import loop_around
from ...source.ownership import kind_of
from .line_tree import INPUTS

Spot = tuple[str, int]


@dataclass(slots=True)
class ProfiledLine:
    """What one line costs in a step."""

    path: tuple[Spot, ...]
    """The user's lines that led here, outermost first, itself last."""
    function: str = ""
    mark: str = ""
    """``fetch``, ``model``, ``backward``, ``optimizer`` or "" for the loop's own work."""
    direct: bool = True
    """Whether the line's own code took the time, not the model or the optimizer it called."""
    seconds: float = 0.0
    hits: float = 0.0

    @property
    def spot(self) -> Spot:
        """File and line."""
        return self.path[-1]


@dataclass(slots=True)
class StepProfile:
    """The lines of a step."""

    seconds: float = 0.0
    inputs: float = 0.0
    """Numbers in the tensors that the models were given."""
    models: float = 0.0
    """Outermost calls of modules."""
    lines: list[ProfiledLine] = field(default_factory=list[ProfiledLine])
    counts: StepCounts = field(default_factory=StepCounts)
    """What else was counted of it (``step_counts``)."""

    @property
    def per_model(self) -> float:
        """Numbers given to one call of a model."""
        return self.inputs / min(self.models, INPUTS) if self.models else 0.0


@dataclass(slots=True)
class LoaderLook:
    """What the samples of a loader with workers cost."""

    samples: list[tuple[Any, float]] = field(default_factory=list[tuple[Any, float]])
    """Index and seconds of each."""
    lines: list[ProfiledLine] = field(default_factory=list[ProfiledLine])
    """Seconds per sample and line, the most expensive first."""
    made: float | None = None
    """Seconds that a worker takes to make one batch; None where it is not known."""

    @property
    def per_sample(self) -> float:
        """Seconds, on average."""
        return sum(s for _, s in self.samples) / len(self.samples) if self.samples else 0.0


@dataclass(frozen=True, slots=True)
class StepLoop:
    """The innermost loop of the user that takes the steps."""

    path: tuple[Spot, ...]
    """The user's lines down to the one that takes the step."""
    depth: int
    """Which of them stands in the loop."""
    first: int
    last: int


def line_of(frame: FrameType | None) -> Spot:
    """The user's innermost line."""
    for above in frames_from(frame):
        if kind_of(above.f_code.co_filename) == "user":
            return above.f_code.co_filename, above.f_lineno
    return "", 0


def turn_of(frame: FrameType | None) -> StepLoop | None:
    """The loop at work; the line that hands over to it where a framework has it."""
    above = [f for f in frames_from(frame) if kind_of(f.f_code.co_filename) == "user"]
    path = tuple((f.f_code.co_filename, f.f_lineno) for f in reversed(above))
    for depth in range(len(path) - 1, -1, -1):
        first, last = loop_around(*path[depth])
        # A loop over optimizers is no loop of steps.
        if first and not (depth == len(path) - 1 and last - first <= 1):
            return StepLoop(path, depth, first, last)
    if path:
        return StepLoop(path, len(path) - 1, path[-1][1], path[-1][1])
    return None


def outer(turn: StepLoop) -> StepLoop:
    """The loop around a loop, as of epochs around one of steps; the same where there is none."""
    for depth in range(turn.depth, -1, -1):
        file, line = turn.path[depth]
        first, last = loop_around(file, turn.first if depth == turn.depth else line)
        if first:
            return StepLoop(turn.path, depth, first, last)
    return turn
