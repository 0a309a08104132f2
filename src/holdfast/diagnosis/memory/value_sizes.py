"""Sizes of everything a script can reach by name, to find what grows from step to step.

A look notes the sizes of all containers, tensors, arrays and texts (numbers only, nothing is kept
alive); from three of them follows what has grown all the time without losing what it had. A
second question is which tensors hang on graphs of steps long past.
"""

from __future__ import annotations

import bisect
import gc
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ...records.memory import ValueGrowth
from ..aside import aside
from .graphs import number_of, reach
from .references import CACHED, Held, walk
from .sizes import Weight, newest, oldest

# Looks that a judgement needs, and steps an old graph must reach back at least.
_LOOKS = 3
_AGE = 6
# Past steps that it must hold graphs of: one was made once, two may be.
_DEEP = 3
# Tensors with a graph that are followed back at each look.
_CHAINS = 64


class ValueSize(NamedTuple):
    """The size of one value at one look."""

    size: int
    ends: tuple[int, int] | None = None
    """Which items are first and last; None for a value that is made anew each time, or empty."""


@dataclass(slots=True)
class GrownValue:
    """Something that has grown at every look and kept what it had."""

    held: Held
    record: ValueGrowth


class Timeline:
    """Which graph nodes belong to which step."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._numbers: list[int] = []

    def ends(self, step: int, number: int) -> None:
        """A step has ended and the next node will have this number."""
        self._steps.append(step)
        self._numbers.append(number)
        if len(self._steps) > 4096:
            del self._steps[1:2048], self._numbers[1:2048]

    def age_of(self, number: int) -> int:
        """Steps since the one that a node was made in."""
        place = bisect.bisect_right(self._numbers, number)
        return self._steps[-1] - self._steps[place] if place < len(self._steps) else -1

    def steps_of(self, numbers: list[int]) -> int:
        """In how many different steps nodes were made; all that came before the first are one."""
        numbers, count, at = sorted(numbers), 0, 0
        while at < len(numbers):
            count += 1
            place = bisect.bisect_right(self._numbers, numbers[at])
            if place == len(self._numbers):
                break
            at = bisect.bisect_left(numbers, self._numbers[place], at)
        return count

    def before(self, steps: int) -> int:
        """The first number that is younger than so many whole steps."""
        return self._numbers[-steps] if len(self._numbers) >= steps else -1


class Chain(NamedTuple):
    """How far a graph reaches back at one look."""

    age: int
    """Steps since its oldest node was made."""
    depth: int
    """Past steps that it has nodes of: one for what was made once and is used ever since."""
    whole: bool
    """Whether all of its nodes were met."""


class Chained(NamedTuple):
    """A tensor whose graph reaches back over many steps."""

    held: Held
    age: int
    depth: int


@dataclass(slots=True)
class _Look:
    step: int
    sizes: dict[str, ValueSize] = field(default_factory=dict[str, ValueSize])
    chains: dict[str, Chain] = field(default_factory=dict[str, "Chain"])
    """By name the tensors whose graphs reach back."""


class ValueSizes:
    """The looks of one place in the loop."""

    def __init__(self, timeline: Timeline) -> None:
        self.seconds = 0.0
        """What the last look took."""
        self.found: list[Held] = []
        """What the last look found, until it is closed."""
        self._timeline = timeline
        self._looks: deque[_Look] = deque(maxlen=_LOOKS)
        self._rounds: deque[_Look] = deque(maxlen=_LOOKS)
        self._since: dict[str, int] = {}

    def begin(self) -> None:
        """Forget earlier looks; what has been growing stays known."""
        self._looks.clear()

    def look(self, frame: FrameType | None, step: int) -> None:
        """Note the sizes of everything in reach."""
        began = perf_counter()
        look = _Look(step)
        with aside():
            self.found = walk(frame)
            for held in self.found:
                if not isinstance(held.value, tuple) or held.how != "item":
                    look.sizes[held.identity] = _reading(held.value)
            look.chains = self._reaching_back()
        self._looks.append(look)
        self.seconds = perf_counter() - began

    def close(self) -> None:
        """Let go of what was found; the numbers stay."""
        self.found = []

    # ------------------------------------------------------------------ what grows

    def growing(self) -> list[GrownValue]:
        """What has grown at every look; the largest first."""
        return self._rising(self._looks)

    def rarely(self) -> list[GrownValue]:
        """What has grown from round to round of looks, each of which may not have seen it grow."""
        if not self._rounds or self._rounds[-1] is not self._looks[-1]:
            self._rounds.append(self._looks[-1])
        return self._rising(self._rounds)

    def _rising(self, looks: deque[_Look]) -> list[GrownValue]:
        if len(looks) < _LOOKS:
            return []
        found: list[GrownValue] = []
        still: dict[str, int] = {}
        for held in self.found:
            readings = [r for look in looks if (r := look.sizes.get(held.identity)) is not None]
            if len(readings) == _LOOKS and _grows(readings):
                since = self._since.get(held.identity, looks[0].step)
                still[held.identity] = since
                found.append(_growth(held, readings, since, [look.step for look in looks]))
        if looks is self._looks:
            self._since = still
        return sorted(found, key=lambda growth: -growth.record.bytes)

    # ------------------------------------------------------------------ what reaches back

    def _reaching_back(self) -> dict[str, Chain]:
        """For each tensor with a graph of more than two steps, how many steps it reaches back."""
        found: dict[str, Chain] = {}
        before, far, young = self._timeline.before(2), True, dict[Any, int]()
        # The loss first: most others are in its graph.
        for number, held in sorted(graph_names(self.found).items(), key=_number, reverse=True):
            # Far is expensive, and one new tensor is enough to ask which name carried the graph.
            far_back = far and number >= before
            back = reach(held.value.grad_fn, before, far=far_back, young=young)
            if back.oldest < before:
                age, depth = self._timeline.age_of(back.oldest), self._timeline.steps_of(back.old)
                found[held.identity] = Chain(age, depth, back.whole)
                far = far and number < before
            if len(found) >= _CHAINS:
                break
        return found

    def chained(self) -> list[Chained]:
        """Those that are renewed, reach back to where they did some looks ago, and get longer."""
        if len(self._looks) < 2:
            return []
        before, last = self._looks[-2], self._looks[-1]
        recent, since = self._timeline.before(2), last.step - before.step
        found: list[Chained] = []
        for number, held in graph_names(self.found).items():
            chain, known = last.chains.get(held.identity), before.chains.get(held.identity)
            if chain is None or chain.age < _AGE or number < recent:
                continue
            if _lengthens(chain, known) and (known is None or chain.age >= known.age + since):
                found.append(Chained(held, chain.age, chain.depth))
        return found


def _lengthens(chain: Chain, known: Chain | None) -> bool:
    """Whether each step adds its graph: what was made once, before the training, gets no longer."""
    longer = known is None or chain.depth > known.depth or not chain.whole
    return chain.depth >= _DEEP and longer


def _number(named: tuple[int, Held]) -> int:
    return named[0]


def graph_names(found: Iterable[Held]) -> dict[int, Held]:
    """Every named tensor with a graph, by the number of its node."""
    named: dict[int, Held] = {}
    for held in found:
        if isinstance(held.value, Tensor) and held.value.grad_fn is not None:
            named.setdefault(number_of(held.value.grad_fn), held)
    return named


def _growth(held: Held, readings: list[ValueSize], since: int, steps: list[int]) -> GrownValue:
    """The numbers of what has grown."""
    sizes = [reading.size for reading in readings]
    rate = (sizes[-1] - sizes[0]) / max(1, steps[-1] - steps[0])
    single = isinstance(held.value, Tensor | np.ndarray | str | bytes | bytearray)
    plain, weight = single, Weight()
    if single:
        weight.add(held.value)
        per_step = rate * weight.bytes / sizes[-1]
    else:
        inside = _inside(held.value)
        added = min(8, sizes[-1] - sizes[0])
        if sizes[-1] > added:
            # What the first one holds as well is not more with each of them.
            weight.seen |= Weight().add(oldest(inside)).seen
        last = newest(inside, added)
        values = last[1::2] if isinstance(inside, dict) else last
        plain = all(isinstance(value, Tensor) for value in values)
        for item in last:
            weight.add(item)
        per_step = rate * weight.bytes / added
    record = ValueGrowth(
        path=held.path,
        rate=rate,
        bytes=per_step,
        size=sizes[-1],
        steps=steps[-1] - since,
        bound=_bound(held.value),
        single=single,
        plain=plain,
        type=type(held.value).__name__,
        graphs=weight.graphs,
        tensor_bytes=weight.tensors,
        other_bytes=weight.others,
        on_device=weight.on_device,
    )
    return GrownValue(held, record)


def _inside(value: Any) -> Any:
    """A cached function holds its results in a dictionary that only the collector knows."""
    if type(value) is CACHED:
        tables = [t for t in gc.get_referents(value) if isinstance(t, dict)]
        return max(tables, key=len) if tables else ()
    return value


def _bound(value: Any) -> int:
    if isinstance(value, deque):
        return value.maxlen or 0
    return int(value.cache_parameters()["maxsize"] or 0) if type(value) is CACHED else 0


def _reading(value: Any) -> ValueSize:
    if isinstance(value, Tensor):
        return ValueSize(value.numel())
    if isinstance(value, np.ndarray):
        return ValueSize(value.size)
    if type(value) is CACHED:
        return ValueSize(value.cache_info().currsize)
    if isinstance(value, dict) and value:
        return ValueSize(len(value), (id(next(iter(value))), id(next(reversed(value)))))
    if isinstance(value, list | tuple | deque) and value:
        return ValueSize(len(value), (id(value[0]), id(value[-1])))
    # An object of the user's may have a length and items too, but asking runs the user's code.
    return ValueSize(len(value) if isinstance(value, str | bytes | bytearray | set) else 0)


def _grows(readings: Sequence[ValueSize]) -> bool:
    """It is larger each time, and the items at one of the ends are still those of before."""
    if any(a.size >= b.size for a, b in pairwise(readings)):
        return False
    ends = [reading.ends for reading in readings if reading.ends is not None]
    return any(len({pair[side] for pair in ends}) <= 1 for side in (0, 1))
