"""Census of everything a script can reach by name, to find what grows from step to step.

A look notes the sizes of all containers, tensors, arrays and texts (numbers only, nothing is kept
alive); from three of them follows what has grown all the time without losing what it had. A
second question is which tensors hang on graphs of steps long past.
"""

from __future__ import annotations

import bisect
import gc
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from time import perf_counter
from types import FrameType
from typing import Any

import numpy as np
from torch import Tensor

from .graphs import number_of, reach
from .holders import CACHED, Held, walk
from .sizes import Weight, newest, oldest

__all__ = ["Census", "Chain", "Growth", "Held", "Reading", "Timeline", "named_graphs"]

# Looks that a judgement needs, and steps an old graph must reach back at least.
_LOOKS = 3
_ITEMS = re.compile(r"(\[[^\[\]]*\])+$")
_AGE = 6
# Tensors with a graph that are followed back at each look.
_CHAINS = 64


@dataclass(slots=True)
class Reading:
    """The size of one value at one look."""

    size: int
    first: int
    last: int
    kept: bool
    """A value that is made anew each time: only its size tells anything."""


@dataclass(slots=True)
class Growth:
    """Something that has grown at every look and kept what it had."""

    held: Held
    members: list[Held]
    """With others of the same owner that grow too: ``groups['a']``, ``groups['b']``."""
    since: int
    step: int
    size: int
    rate: float
    """Items (or numbers of a tensor) per step."""
    weight: Weight
    per_step: float
    """Estimated bytes per step."""
    single: bool
    """One tensor, array or text that grows, not a container."""
    bound: int
    """The most items it can ever have; 0 for no bound."""
    steady: float
    """How fast it grew between the last two looks, compared with the time before."""
    apart: int
    """Steps between the last two looks."""


@dataclass(slots=True)
class Chain:
    """A tensor whose graph reaches back over many steps."""

    held: Held
    number: int
    age: int
    oldest: int


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

    def step_of(self, number: int) -> int:
        """The step that a node was made in."""
        place = bisect.bisect_right(self._numbers, number)
        return self._steps[place] if place < len(self._steps) else self.last + 1

    def before(self, steps: int) -> int:
        """The first number that is younger than so many whole steps."""
        return self._numbers[-steps] if len(self._numbers) >= steps else -1

    @property
    def last(self) -> int:
        """The last step that has ended."""
        return self._steps[-1] if self._steps else -1


@dataclass(slots=True)
class _Look:
    step: int
    sizes: dict[str, Reading]
    oldest: dict[str, int] = field(default_factory=dict[str, int])
    """For tensors with a graph, the first step it reaches back to."""
    crowds: dict[str, int] = field(default_factory=dict[str, int])
    """How many tensors with a graph hang below each variable."""


class Census:
    """The looks of one place in the loop."""

    def __init__(self, timeline: Timeline) -> None:
        self.seconds = 0.0
        """What the last look took."""
        self._timeline = timeline
        self._looks: deque[_Look] = deque(maxlen=_LOOKS)
        self._rounds: deque[_Look] = deque(maxlen=_LOOKS)
        self._since: dict[str, int] = {}
        self._found: list[Held] = []
        self._chains: list[Chain] = []

    def begin(self) -> None:
        """Forget earlier looks; what has been growing stays known."""
        self._looks.clear()

    def look(self, frame: FrameType | None, step: int, *, thorough: bool = False) -> None:
        """Note the sizes of everything in reach."""
        began = perf_counter()
        self._found = walk(frame, thorough=thorough)
        look = _Look(step, {})
        for held in self._found:
            if not isinstance(held.value, tuple) or held.how != "item":
                look.sizes[held.identity] = _reading(held.value)
            if isinstance(held.value, Tensor) and held.value.grad_fn is not None:
                look.crowds[held.root] = look.crowds.get(held.root, 0) + 1
        self._chains = self._reaching_back()
        for chain in self._chains:
            look.oldest[chain.held.identity] = chain.oldest
        self._looks.append(look)
        self.seconds = perf_counter() - began

    def close(self) -> None:
        """Let go of what was found; the numbers stay."""
        self._found, self._chains = [], []

    # ------------------------------------------------------------------ what grows

    def growing(self) -> list[Growth]:
        """What has grown at every look; the largest first."""
        return self._rising(self._looks)

    def rarely(self) -> list[Growth]:
        """What has grown from round to round of looks, each of which may not have seen it grow."""
        if not self._rounds or self._rounds[-1] is not self._looks[-1]:
            self._rounds.append(self._looks[-1])
        return self._rising(self._rounds)

    def crowds(self) -> list[Growth]:
        """Variables below which more and more tensors with graphs hang, in no container."""
        if len(self._looks) < _LOOKS:
            return []
        found: list[Growth] = []
        for held in self._found:
            if held.depth:
                continue
            counts = [look.crowds.get(held.root, 0) for look in self._looks]
            if counts[0] and _rises(counts):
                readings = [Reading(count, 0, 0, kept=False) for count in counts]
                growth = self._growth([(held, readings)], counts, self._looks[0].step, self._looks)
                growth.weight.graphs, growth.per_step = 1, 0.0
                found.append(growth)
        return found

    def _rising(self, looks: deque[_Look]) -> list[Growth]:
        if len(looks) < _LOOKS:
            return []
        groups: dict[str, list[tuple[Held, list[Reading]]]] = {}
        still: dict[str, int] = {}
        for held in self._found:
            readings = _readings(looks, held.identity)
            if readings is None or not _kept(readings):
                continue
            groups.setdefault(_group(held), []).append((held, readings))
        found: list[Growth] = []
        for name, members in groups.items():
            since = looks[0].step
            together = _sums(members)
            if _rises(together):
                since = still[name] = self._since.get(name, since)
            # Those that grow at every look speak for themselves, the others together. Where each
            # grows now and then, all of them do as long as the whole does.
            alone = [m for m in members if _rises([r.size for r in m[1]])]
            for member in alone:
                known = member[0].identity
                first = still[known] = min(since, self._since.get(known, since))
                growth = self._growth([member], _sums([member]), first, looks)
                if growth.rate < 0.9:  # now it is this one's turn, now another one's
                    growth.members += [m[0] for m in members if m is not member][:7]
                found.append(growth)
            if not alone and name in still:
                found.append(self._growth(members, together, since, looks))
        if looks is self._looks:
            self._since = still
        return sorted(found, key=lambda g: -g.per_step)

    def _growth(
        self,
        members: list[tuple[Held, list[Reading]]],
        totals: Sequence[int],
        since: int,
        looks: deque[_Look],
    ) -> Growth:
        members = sorted(members, key=lambda m: m[1][0].size - m[1][-1].size)
        held, readings = members[0]
        steps = max(1, looks[-1].step - looks[0].step)
        rate = (totals[-1] - totals[0]) / steps
        value = held.value
        single = isinstance(value, Tensor | np.ndarray | str | bytes | bytearray)
        weight = Weight()
        if single:
            weight.add(value)
            per_step = rate * weight.bytes / max(1, readings[-1].size)
        else:
            added = max(1, min(8, readings[-1].size - readings[0].size))
            if readings[-1].size > added:
                # What the first one holds as well is not more with each of them.
                weight.seen |= Weight().add(oldest(_inside(value))).seen
            for item in newest(_inside(value), added):
                weight.add(item)
            per_step = rate * weight.bytes / added
        return Growth(
            held, [m[0] for m in members[:8]], since, looks[-1].step, totals[-1], rate,
            weight, per_step, single, _bound(value), _steadiness(looks, totals),
            looks[-1].step - looks[-2].step,
        )  # fmt: skip

    # ------------------------------------------------------------------ what reaches back

    def _reaching_back(self) -> list[Chain]:
        """Tensors with a graph that reaches back beyond the step before the last one."""
        found: list[Chain] = []
        before = self._timeline.before(2)
        for held in self._found:
            value = held.value
            if not isinstance(value, Tensor) or value.grad_fn is None:
                continue
            number = number_of(value.grad_fn)
            back = reach(value.grad_fn, before)
            if back.oldest < before:
                oldest = self._timeline.step_of(back.oldest)
                found.append(Chain(held, number, self._timeline.last - oldest, oldest))
            if len(found) >= _CHAINS:
                break
        return found

    def chained(self, age: int = _AGE) -> list[Chain]:
        """Those that are renewed and still reach back to where they did some looks ago."""
        if len(self._looks) < 2:
            return []
        earlier = self._looks[-2]
        recent = self._timeline.before(2)
        return [
            chain
            for chain in self._chains
            if chain.age >= age
            and chain.number >= recent
            and earlier.oldest.get(chain.held.identity, 1 << 60) >= chain.oldest
        ]

    def numbers(self) -> dict[int, Held]:
        """Every named tensor with a graph, by the number of its node."""
        found: dict[int, Held] = {}
        for held in self._found:
            if isinstance(held.value, Tensor) and held.value.grad_fn is not None:
                found.setdefault(number_of(held.value.grad_fn), held)
        return found


def _sums(members: Sequence[tuple[Held, list[Reading]]]) -> list[int]:
    return [sum(readings[i].size for _, readings in members) for i in range(_LOOKS)]


def _readings(looks: deque[_Look], identity: str) -> list[Reading] | None:
    readings = [look.sizes.get(identity) for look in looks]
    return None if None in readings else [r for r in readings if r is not None]


def _steadiness(looks: deque[_Look], totals: Sequence[int]) -> float:
    """How fast something grew between the last two looks, compared with those before."""
    steps = [look.step for look in looks]
    before = (totals[-2] - totals[0]) / max(1, steps[-2] - steps[0])
    return (totals[-1] - totals[-2]) / max(1, steps[-1] - steps[-2]) / max(before, 1e-9)


def _rises(sizes: Sequence[int]) -> bool:
    return all(a < b for a, b in pairwise(sizes))


def _group(held: Held) -> str:
    """One name for all that hang below the same named thing."""
    if held.how != "item":
        return held.identity
    return f"{held.scope}|{_ITEMS.sub('', held.path)}[*]"


def _inside(value: Any) -> Any:
    """A cached function holds its results in a dictionary that only the collector knows."""
    if type(value) is CACHED:
        tables = [t for t in gc.get_referents(value) if isinstance(t, dict)]
        return max(tables, key=len) if tables else ()
    return value


def _bound(value: Any) -> int:
    if isinstance(value, deque):
        return value.maxlen or 0
    if type(value) is CACHED:
        return int(value.cache_parameters().get("maxsize") or 0)
    return 0


def _reading(value: Any) -> Reading:
    if isinstance(value, Tensor):
        return Reading(value.numel(), 0, 0, kept=False)
    if isinstance(value, np.ndarray):
        return Reading(value.size, 0, 0, kept=False)
    if type(value) is CACHED:
        return Reading(value.cache_info().currsize, 0, 0, kept=False)
    if isinstance(value, dict) and value:
        return Reading(len(value), id(next(iter(value))), id(next(reversed(value))), kept=True)
    if isinstance(value, list | tuple | deque) and value:
        return Reading(len(value), id(value[0]), id(value[-1]), kept=True)
    # An object of the user's may have a length and items too, but asking runs the user's code.
    size = len(value) if isinstance(value, str | bytes | bytearray | set) else 0
    return Reading(size, 0, 0, kept=False)


def _kept(readings: Sequence[Reading]) -> bool:
    """Nothing got smaller, and the items at one of the ends are still those of before."""
    a, z = readings[0], readings[-1]
    if any(x.size > y.size for x, y in pairwise(readings)):
        return False
    if z.size <= a.size:
        return False
    full = [r for r in readings if r.kept]
    return (
        len(full) < 2
        or all(r.first == full[0].first for r in full)
        or all(r.last == full[0].last for r in full)
    )


def named_graphs(frame: FrameType | None) -> dict[int, Held]:
    """The named tensors that hang on a graph, by the number of its node; no tensor is kept."""
    found: dict[int, Held] = {}
    for held in walk(frame):
        if isinstance(held.value, Tensor) and held.value.grad_fn is not None:
            number = number_of(held.value.grad_fn)
            found.setdefault(number, replace(held, owner=None, key=None, value=None))
    return found
