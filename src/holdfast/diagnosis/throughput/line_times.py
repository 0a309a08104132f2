"""Exact seconds per line of the user's code over a few steps, by what they were spent for.

Bound: a trace ends by itself after 200,000 lines of the user's code. Preempted lines look slow on
one step only, so a line counts with what it takes on a good one of the timed steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FrameType

from .line_tree import (
    MODEL,
    LineNode,
    LineTree,
    Spent,
    costs,
)
from .profiles import ProfiledLine, Spot, StepProfile

# How many times its measured cost the trace may cost beyond it, on a busy machine.
_DEARER = 1.0
_NOTHING = Spent()


@dataclass(slots=True)
class _Step:
    spent: dict[LineNode, Spent]
    inputs: int
    seconds: float


class LineTimes:
    """Traces steps of the thread it is called in; all profiles of a run share its tree."""

    def __init__(self) -> None:
        self.tree = LineTree()
        self.extra = 0.0
        """About the seconds that the trace has added to the last step, where caches are warm."""
        self._steps: list[_Step] = []

    @property
    def running(self) -> bool:
        """Whether lines are being timed."""
        return self.tree.running

    def begin(self, frame: FrameType | None) -> bool:
        """Time the lines from here on; False where a debugger or a coverage tool is at work."""
        self._steps = []
        self.tree.take()
        return self.tree.start(frame)

    def step(self, wall: float) -> float:
        """A step is over that took ``wall`` seconds with the trace in it; about what without."""
        spent, inputs = self.tree.take()
        seconds = sum(line.seconds for line in spent.values())
        self._steps.append(_Step(spent, inputs, seconds))
        cost = costs()
        extra = sum(line.hits * cost.wall + line.calls * cost.call for line in spent.values())
        self.extra = extra
        return max(seconds, wall - extra) if wall else 0.0

    def stop(self, frame: FrameType | None = None) -> None:
        """Time no more lines."""
        self.tree.stop(frame)

    def profile(self, chosen: Sequence[int] | None = None, typical: float = 0.0) -> StepProfile:
        """What a step costs, line by line.

        Args:
            chosen: which of the steps; all of them if not given.
            typical: seconds of such a step without the trace, where known: what is above is the
                trace's own and is taken away from lines that were passed often.
        """
        steps = [s for i, s in enumerate(self._steps) if chosen is None or i in chosen]
        extra = _extra(steps, typical)
        nodes: dict[LineNode, None] = {n: None for s in steps for n in s.spent}
        rest = _rest(steps, nodes)
        merged: dict[tuple[tuple[Spot, ...], str, bool], ProfiledLine] = {}
        models = 0.0
        for node in nodes:
            if node.rest:
                continue
            more = rest.get(node, 1.0)
            # Where lines are followed in bursts, all of them are slower, and not by their number.
            dearer = extra if more == 1.0 else 0.0
            spent = [s.spent.get(node, _NOTHING) for s in steps]
            hits = more * _low(s.hits for s in spent)
            path, mark, function = _where(node)
            if node.mark == MODEL and not _where(node.parent)[1]:
                models += hits
            if not path:
                continue
            line = merged.setdefault(
                (path, mark, not node.mark), ProfiledLine(path, function, mark, not node.mark)
            )
            line.seconds += more * _low(max(0.0, s.seconds - dearer * _cost(s)) for s in spent)
            if line.direct:
                line.hits += hits
        lines = sorted(merged.values(), key=lambda line: -line.seconds)
        return StepProfile(
            sum(line.seconds for line in lines),
            _low(s.inputs for s in steps),
            models,
            [line for line in lines if line.seconds > 0 or line.hits],
        )


def _cost(spent: Spent) -> float:
    """Seconds of the trace that were counted as a line's own."""
    return spent.hits * costs().line + spent.calls * costs().call


def _extra(steps: Sequence[_Step], typical: float) -> float:
    """How many times its measured cost the trace has cost beyond it."""
    cost = _low(sum(map(_cost, s.spent.values())) for s in steps)
    above = _low(s.seconds for s in steps) - typical
    return min(_DEARER, max(0.0, above) / cost) if typical and cost else 0.0


def _rest(steps: Sequence[_Step], nodes: Iterable[LineNode]) -> dict[LineNode, float]:
    """By how much to multiply what was seen of lines that were followed in bursts only."""
    seen: dict[tuple[LineNode | None, object], float] = {}
    unseen: dict[tuple[LineNode | None, object], float] = {}
    for node in nodes:
        if not node.mark:
            kind, at = unseen if node.rest else seen, (node.parent, node.code)
            spent = sum(s.spent.get(node, _NOTHING).seconds for s in steps)
            kind[at] = kind.get(at, 0.0) + spent
    return {
        node: 1.0 + unseen[at] / seen[at]
        for node in nodes
        if not node.rest and (at := (node.parent, node.code)) in unseen and seen.get(at)
    }


def _low(values: Iterable[float]) -> float:
    """A low one of some values: what is above it may be another process's doing."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 4] if ordered else 0.0


def _where(node: LineNode | None) -> tuple[tuple[Spot, ...], str, str]:
    """The user's lines down to a node, the outermost mark on the way, the innermost function."""
    spots: list[Spot] = []
    mark = function = ""
    while node is not None:
        if node.mark:
            mark = node.mark
        elif node.code is not None:
            function = function or node.code.co_name
            spots.append((node.code.co_filename, node.line))
        node = node.parent
    return tuple(reversed(spots)), mark, function
