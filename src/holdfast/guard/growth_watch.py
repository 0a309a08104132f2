"""From a suspicion to a name and a line: looks, judges, sets a watchpoint, tells.

Three looks some steps apart; what has grown at each of them, or hangs on graphs of long ago, is
watched for one or two steps more, so that the line that does it is seen at work. What the source
keeps small on purpose gets more time before it is believed to grow for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from types import FrameType
from typing import Any

from torch import nn

from ..exams._changed import Changed
from ..exams._graphs import newest, reach
from ..exams._growers import (
    Habits,
    fed_to,
    function_at,
    habits,
    in_loop,
    refers_to_itself,
    registers,
)
from ..exams._holders import CACHED, HOOKS
from ..exams._place import frames_from, kind_of, place_told
from ..exams._trace import Change, Watchpoint
from ..exams.census import Census, Chain, Growth, Held, Timeline

# Steps between the looks of a round, and between rounds (doubled each time).
_APART = 3
_ROUND = 16
_LONGEST = 512
# Share of the time of a run that looks may take: as a rule, and while something grows.
_SHARE = 0.003
_SHARE_ALERT = 0.02
# Seconds after which a run is worth a thorough look.
_LONG = 60.0
# Steps a watchpoint stands, where growth is seen on every step.
_WATCHED = 3
# Steps it stands at most, and waits where somebody else follows the lines.
_PATIENCE = 12
# Bytes per step below which plain objects are a log and no leak; where it is clear at once.
_LEAST = 8 << 10
_CLEAR = 48 << 10
# Steps of growth that are believed at once, with doubts in the source, and of small amounts.
_DOUBTFUL_GRAPH = 60
_DOUBTFUL = 96
_SMALL = 40
# Growth that has slowed down to less than this share levels off.
_STEADY = 0.4
# What makes a new value by writing into a part of the old one.
_OVERWRITES = {
    "index_copy", "index_put", "scatter", "where", "masked_scatter", "slice_scatter",
    "select_scatter",
}  # fmt: skip
# A queue with so few places is meant to be one.
_SHORT = 512


@dataclass(slots=True)
class _Case:
    """Something under watch."""

    code: str
    held: Held
    facts: dict[str, Any]
    members: list[Held]
    """All whose growth shows the line: it may be the turn of another one."""
    single: bool = False


class GrowthWatch:
    """What grows, seen from one point of the loop.

    Args:
        timeline: which graph nodes belong to which step.
        tell: takes the code and the facts of what was found.
        epoch: steps in one pass over the data, as far as known; 0 if not.
    """

    def __init__(
        self,
        timeline: Timeline,
        tell: Callable[[str, dict[str, Any]], None],
        epoch: Callable[[], int],
    ) -> None:
        self._timeline, self._tell, self._epoch = timeline, tell, epoch
        self._census = Census(timeline)
        self._next = 2
        self._looks = 0
        self._last = 0
        self._cost = 1e-3
        self._gap = _ROUND
        self._alert = False
        self._thorough = False
        self._in_vain = False
        self._tried = False
        self._told: set[str] = set()
        self._carriers: dict[int, Held] | None = None
        self._suspected: list[Chain] = []
        self._fed: list[int] = []
        self._watch: Watchpoint | None = None
        self._cases: list[_Case] = []
        self._watches: list[int] = []
        self._watched = 0
        self._span = _WATCHED
        self._began: tuple[float, int] | None = None

    @property
    def asks_backward(self) -> bool:
        """Whether it wants to see the next loss before backward."""
        return self._carriers is not None

    def order(self, step: int, *, certain: bool) -> None:
        """There is a sign of growth: look soon.

        Args:
            step: where the loop is.
            certain: something is kept for certain, whatever it is.
        """
        if self._alert or self._watch is not None or self._carriers is not None:
            return
        # Signs that remain although nothing was found: what no name leads to is looked at too.
        # That takes a tenth of a second, and the run must be worth it.
        old = self._began is not None and perf_counter() - self._began[0] > _LONG
        self._thorough = self._in_vain and (old or (certain and not self._tried))
        self._tried = self._tried or self._thorough
        self._alert = self._in_vain = True
        if self._next > step + 1:
            self._next, self._looks = step + 1, 0
            self._census.begin()

    def backward(self, loss: Any) -> None:
        """A loss whose graph may reach back into earlier steps."""
        back = reach(loss.grad_fn, self._timeline.before(1))
        self._fed = back.entries

    def tick(self, step: int, frame: FrameType) -> None:
        """A step has ended."""
        if self._watch is not None:
            self._look_at_watch(self._watch, frame)
        elif self._carriers is not None:
            self._name_carrier(step, frame)
        elif step >= self._next:
            self._look(step, frame)

    @property
    def busy(self) -> bool:
        """Whether something grows, or is being watched."""
        return self._alert or self._watch is not None or self._carriers is not None

    def close(self) -> None:
        """The process ends: tell what is under watch without its line having been seen."""
        if self._watch is not None:
            self._conclude()

    # ------------------------------------------------------------------ looking

    def _look(self, step: int, frame: FrameType) -> None:
        now = perf_counter()
        if self._began is None:
            self._began = now, step
        self._census.look(frame, step, thorough=self._thorough)
        self._looks += 1
        self._next = step + _APART
        # One that was interrupted must not put off all the others.
        self._cost = min(self._census.seconds, 2 * self._cost)
        if self._looks >= 3:
            self._judge(step, frame)
        self._census.close()
        # Looks must stay cheap compared with the steps between them.
        since = self._began
        apart, self._last = step - self._last, step
        # After a long pause a second look shows whether it still goes on.
        if self._looks >= 3 and step > since[1] and not (self._alert and apart > 2 * _APART):
            each = max(1e-6, (now - since[0]) / (step - since[1]))
            share = _SHARE_ALERT if self._alert else _SHARE
            self._next = max(self._next, step + int(self._cost / (share * each)))

    def _judge(self, step: int, frame: FrameType) -> None:
        growing = [g for g in self._census.growing() if g.held.identity not in self._told]
        if not growing:
            growing = [g for g in self._census.crowds() if g.held.identity not in self._told]
        ripe = [(code, g) for g in growing if (code := self._code(g))]
        self._alert = any(g.weight.graphs or g.per_step > _LEAST for g in growing)
        self._thorough = False
        if ripe:
            self._in_vain = False
            self._set_watch(frame, [self._case(code, g) for code, g in ripe[:4]])
            self._next = step + _APART
            return
        chained = [
            c
            for c in self._census.chained()
            if c.held.identity not in self._told and self._long_enough(c)
        ]
        if chained:
            self._in_vain = False
            self._carriers = self._census.numbers()
            self._suspected = chained
            self._next = step + 1
            return
        if not self._alert:
            # What grows now and then only shows over several rounds.
            rare = [g for g in self._census.rarely() if g.held.identity not in self._told]
            ripe = [(code, g) for g in rare if (code := self._code(g))]
            if ripe:
                self._set_watch(frame, [self._case(code, g) for code, g in ripe[:4]])
        self._next = step + (_APART if self._alert else self._gap)
        self._gap = min(2 * self._gap, _LONGEST)

    def _code(self, growth: Growth) -> str:
        """What kind of growth it is; empty while it may yet turn out harmless."""
        steps = growth.step - growth.since
        known = self._habits(growth.held)
        if growth.steady < _STEADY or known.capped:
            return ""
        if 0 < growth.bound <= _SHORT or growth.bound > 0 == growth.weight.graphs:
            return ""
        if growth.weight.graphs and not growth.single:
            # A list that backward will use and that is emptied then may span some steps.
            patient = known.consumed and (known.shrinks or _renewed(growth.held))
            return "MEM002" if steps >= (_DOUBTFUL_GRAPH if patient else 0) else ""
        if growth.per_step < _LEAST or (growth.per_step < _CLEAR and steps < _SMALL):
            return ""
        if growth.single and growth.held.how == "item":
            return ""
        if type(growth.held.value) is CACHED:
            hits = growth.held.value.cache_info().hits
            return "MEM001" if hits * 20 < growth.size and steps >= _SMALL else ""
        code = "MEM001" if growth.weight.tensors > growth.weight.others else "MEM005"
        if growth.single and growth.weight.graphs:
            code = "MEM002"
        if not (known.shrinks or known.tested or _renewed(growth.held)):
            return code
        if _hashed_by_identity(growth.held.value):
            return code
        if growth.apart > 2 * _APART:
            return ""  # it may have stopped to grow in between
        # A cache is full, and a list begun anew, after one pass over the data.
        return code if steps >= (2 * self._epoch() or _DOUBTFUL) else ""

    def _long_enough(self, chain: Chain) -> bool:
        return chain.age >= (40 if self._habits(chain.held).detached else 0)

    def _habits(self, held: Held) -> Habits:
        return habits(held.file, held.name, held.function)

    # ------------------------------------------------------------------ which name carries a graph

    def _name_carrier(self, step: int, frame: FrameType) -> None:
        """One step later: which tensor of the step before leads into the new graphs?"""
        carriers, self._carriers = self._carriers or {}, None
        self._census.look(frame, step)
        before = self._timeline.before(2)
        votes: dict[str, int] = {}
        now: dict[str, Held] = {}
        for number, held in self._census.numbers().items():
            now[held.identity] = held
            for entry in reach(held.value.grad_fn, before).entries:
                if entry in carriers and number >= before:
                    identity = carriers[entry].identity
                    votes[identity] = votes.get(identity, 0) + 1
        fed = [carriers[e] for e in self._fed if e in carriers]
        code = "MEM003" if self._fed else "MEM002"
        named = [c.held.identity for c in self._suspected]
        likely = [h.identity for h in fed] or sorted(votes, key=lambda i: (-votes[i], i))
        # What only came from the last step is not what carries the steps before it.
        chosen = [i for i in likely if i in named] or likely or named
        chains = {c.held.identity: c for c in self._suspected}
        for identity in chosen:
            held = now.get(identity)
            if held is not None and identity not in self._told:
                chain = chains.get(identity) or self._suspected[0]
                facts = {"age": chain.age + 1, "steps": chain.age + 1, "bytes": 0.0}
                self._set_watch(frame, [_Case(code, held, facts, [held], single=True)])
                break
        self._census.close()
        self._suspected, self._fed = [], []
        self._next = step + _APART

    # ------------------------------------------------------------------ which line

    def _case(self, code: str, growth: Growth) -> _Case:
        facts = {
            "rate": growth.rate,
            "bytes": growth.per_step,
            "size": growth.size,
            "since": growth.since,
            "steps": growth.step - growth.since,
            "on_device": growth.weight.on_device,
            "kind": type(growth.held.value).__name__,
        }
        return _Case(code, growth.held, facts, growth.members, growth.single)

    def _set_watch(self, frame: FrameType, cases: list[_Case]) -> None:
        self._cases = cases
        self._watched = 0
        # What grows in turn with others may not do so on the next three steps.
        self._span = _PATIENCE if any(len(case.members) > 1 for case in cases) else _WATCHED
        self._watches = [i for i, case in enumerate(cases) for _ in case.members]
        self._watch = Watchpoint([Changed(held) for case in cases for held in case.members])
        self._watch.start(frame)

    def _look_at_watch(self, watch: Watchpoint, frame: FrameType) -> None:
        self._watched += 1
        if not watch.began:
            # Somebody else follows the lines just now; that may be over soon.
            if self._watched < _PATIENCE and not watch.start(frame):
                return
            self._watched = 0 if watch.began else self._span
        seen = {self._watches[j] for j in watch.changes}
        if len(seen) == len(self._cases) or self._watched >= self._span or not watch.active:
            self._conclude()

    def _conclude(self) -> None:
        watch, self._watch = self._watch, None
        cases, self._cases = self._cases, []
        if watch is None:
            return
        watch.stop()
        for i, case in enumerate(cases):
            seen = [c for j, found in watch.changes.items() if self._watches[j] == i for c in found]
            change = self._chosen(case, seen)
            if change is None and case.single and case.code != "MEM003":
                continue  # a value that is simply another one each time
            self._told.add(case.held.identity)
            self._say(case, change)

    def _chosen(self, case: _Case, changes: list[Change]) -> Change | None:
        """The line that does it, among those that changed the value."""
        name = case.held.name
        itself = [c for c in changes if refers_to_itself(c.file, c.line, name)]
        if case.single and case.code in ("MEM001", "MEM005"):
            return itself[0] if itself else None
        return (itself or changes or [None])[0]

    def _say(self, case: _Case, change: Change | None) -> None:
        held = case.held
        facts = {**case.facts, "path": held.path, "name": held.name, "how": held.how}
        code, facts["graph"] = case.code, newest(held.value)
        if change is not None:
            if code == "MEM002" and case.single and _through_a_model(held, change):
                code = "MEM003"
            facts |= {"seen": "trace", "function": change.function, "callers": change.callers}
            facts |= place_told(change.file, change.line)
        else:
            known = self._habits(held)
            hooks = registers(held.file) if held.name in HOOKS else []
            lines = hooks or known.grows or known.assigned
            line = lines[0] if lines else 0
            facts |= {"seen": "source" if len(lines) == 1 else "guess"}
            facts |= {"function": function_at(held.file, line), **place_told(held.file, line)}
        self._tell(code, facts)


def _through_a_model(held: Held, change: Change) -> bool:
    """Whether a model makes the new value of the old one: a state, also where no loss uses it.

    So is what a module keeps and writes into, part by part.
    """
    owner = held.owner
    inside = isinstance(owner, dict) and "_modules" in owner  # the attributes of a module
    known = {**owner.f_globals, **owner.f_locals} if isinstance(owner, FrameType) else {}
    for callee in fed_to(change.file, change.line, held.name):
        root, *path = callee.split(".")
        if inside and path and path[-1] in _OVERWRITES:
            return True
        value: Any = owner if root == "self" and root not in known else known.get(root)
        for attribute in path:
            value = getattr(value, attribute, None)
        whose = value if root == "self" else getattr(value, "__self__", value)
        if isinstance(whose, nn.Module):
            return True
    return False


def _renewed(held: Held) -> bool:
    """Whether a local variable belongs to a function that is called again and again."""
    if held.how != "local" or not isinstance(held.owner, FrameType):
        return False
    return any(
        in_loop(f.f_code.co_filename, f.f_lineno)
        for f in frames_from(held.owner.f_back)
        if kind_of(f.f_code.co_filename) == "user"
    )


def _hashed_by_identity(value: Any) -> bool:
    """Whether the keys of a dictionary can never be met again: tensors, for example."""
    if not isinstance(value, dict) or not value:
        return False
    return type(next(reversed(value))).__hash__ is object.__hash__ or hasattr(
        next(reversed(value)), "grad_fn"
    )
