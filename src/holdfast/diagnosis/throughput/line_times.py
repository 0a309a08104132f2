"""Exact seconds per line of the user's code over a few steps, by what they were spent for.

Bound: a trace ends by itself after 200,000 lines of the user's code. Preempted lines look slow on
one step only, so what is told is what a line takes on a good one of the steps looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FrameType

from .line_nodes import MODEL, Node
from .line_tree import LineTree, costs
from .profiles import Line, Profile, Spot

# How many times its measured cost the trace may cost beyond it, on a busy machine.
_DEARER = 1.0


@dataclass(slots=True)
class _Step:
    seconds: float
    inputs: int
    spent: dict[Node, tuple[float, int, int]]


class LineTimes:
    """Traces steps of the thread it is called in; all profiles of a run share its tree."""

    def __init__(self) -> None:
        self.tree = LineTree()
        self.overhead = 0.0
        """Seconds the trace has added to the run, estimated."""
        self._steps: list[_Step] = []

    @property
    def running(self) -> bool:
        """Whether lines are being timed."""
        return self.tree.running

    @property
    def steps(self) -> int:
        """How many steps have been taken since ``begin``."""
        return len(self._steps)

    def begin(self, frame: FrameType | None) -> bool:
        """Time the lines from here on; False where a debugger or a coverage tool is at work."""
        self._steps = []
        self.tree.take(lambda node, spent: None)
        self.tree.overflown = False
        return self.tree.start(frame)

    def step(self, wall: float) -> float:
        """A step is over that took ``wall`` seconds with the trace in it; about what without."""
        spent: dict[Node, tuple[float, int, int]] = {}

        def visit(node: Node, seconds: float) -> None:
            spent[node] = seconds, node.hits, node.calls

        inputs = self.tree.take(visit)
        seconds = sum(s for s, _, _ in spent.values())
        self._steps.append(_Step(seconds, inputs, spent))
        cost = costs()
        extra = sum(h * cost.line_wall + c * cost.call_wall for _, h, c in spent.values())
        without = max(seconds, wall - extra) if wall else 0.0
        self.overhead += max(0.0, wall - without)
        return without

    def stop(self, frame: FrameType | None = None) -> None:
        """Time no more lines."""
        self.tree.stop(frame)

    def profile(self, chosen: Sequence[int] | None = None, typical: float = 0.0) -> Profile:
        """What a step costs, line by line.

        Args:
            chosen: which of the steps; all of them if not given.
            typical: seconds of such a step without the trace, where known: what is above is the
                trace's own and is taken away from lines that were passed often.
        """
        steps = [s for i, s in enumerate(self._steps) if chosen is None or i in chosen]
        if not steps:
            return Profile()
        total = _low(s.seconds for s in steps)
        cost = costs()

        def weight(hits: int, calls: int) -> float:
            return hits * cost.line + calls * cost.call

        passed = _low(sum(weight(h, c) for _, h, c in s.spent.values()) for s in steps)
        extra = min(_DEARER, max(0.0, total - typical) / passed) if typical and passed else 0.0
        merged: dict[tuple[tuple[Spot, ...], str, bool], Line] = {}
        models = 0.0
        nodes: dict[Node, None] = {n: None for s in steps for n in s.spent}
        rest = _rest(steps, nodes)
        for node in nodes:
            if node.rest:
                continue
            more = rest.get(node, 1.0)
            # Where lines are followed in bursts, all of them are slower, and not by their number.
            dearer = extra if more == 1.0 else 0.0
            seconds = more * _low(
                max(0.0, t - dearer * weight(h, c))
                for t, h, c in (s.spent.get(node, (0.0, 0, 0)) for s in steps)
            )
            hits = more * _low(s.spent.get(node, (0.0, 0, 0))[1] for s in steps)
            path, mark, function = _where(node)
            if node.mark == MODEL and mark == MODEL and not _inside_model(node):
                models += hits
            if not path:
                continue
            key = path, mark, not node.mark
            line = merged.get(key)
            if line is None:
                line = Line(*path[-1], function, mark, 0.0, 0.0, path, not node.mark)
                merged[key] = line
            line.seconds += seconds
            if not node.mark:
                line.hits += hits
                line.calls += _low(s.spent.get(node, (0.0, 0, 0))[2] for s in steps)
        lines = sorted(merged.values(), key=lambda line: -line.seconds)
        return Profile(
            sum(line.seconds for line in lines),
            _low(s.inputs for s in steps),
            models,
            [line for line in lines if line.seconds > 0 or line.hits],
        )


def _rest(steps: Sequence[_Step], nodes: Iterable[Node]) -> dict[Node, float]:
    """By how much to multiply what was seen of lines that were followed in bursts only."""
    seen: dict[tuple[Node | None, object], float] = {}
    unseen: dict[tuple[Node | None, object], float] = {}
    for node in nodes:
        kind = unseen if node.rest else seen
        if not node.mark:
            spent = sum(s.spent.get(node, (0.0, 0, 0))[0] for s in steps)
            kind[node.parent, node.code] = kind.get((node.parent, node.code), 0.0) + spent
    return {
        node: 1.0 + unseen[at] / seen[at]
        for node in nodes
        if not node.rest and (at := (node.parent, node.code)) in unseen and seen.get(at)
    }


def _low(values: Iterable[float]) -> float:
    """A low one of some values: what is above it may be another process's doing."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 4] if ordered else 0.0


def _inside_model(node: Node) -> bool:
    above = node.parent
    while above is not None:
        if above.mark:
            return True
        above = above.parent
    return False


def _where(node: Node) -> tuple[tuple[Spot, ...], str, str]:
    """The user's lines down to a node, the outermost mark on the way, the innermost function."""
    spots: list[Spot] = []
    mark = function = ""
    at: Node | None = node
    while at is not None:
        if at.mark:
            mark = at.mark
        elif at.code is not None:
            function = function or at.code.co_name
            spots.append((at.code.co_filename, at.line))
        at = at.parent
    spots.reverse()
    return tuple(spots), mark, function
