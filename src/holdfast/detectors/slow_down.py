"""TPT004: slowdown; steps take longer and longer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ..records.memory import GraphChain, ValueGrowth
from ..types import Event, Severity
from ._examples import rows
from ._line_examples import called, costs, timed_lines
from ._lines import (
    CostlyLine,
    LineProfile,
    LineTimesEvent,
    SourceLine,
    look_of,
)
from ._timed import (
    TimeClaim,
    TimedDetector,
    ms,
    quoted,
)
from ._window import Window

_PASSES = ("model", "backward")
_MEANT = {
    "bigger_batches": "the model gets larger inputs than before",
    "more_parameters": "more parameters have gradients than before",
}

_MODEL = called(52, 0.0015, "model")
_BEFORE = [costs(57, 0.0005), _MODEL]
_SLOWER = timed_lines("slow", [costs(57, 0.0035), _MODEL], _BEFORE)
_HARDLY = timed_lines("slow", [costs(57, 0.0007), _MODEL], _BEFORE)


class SlowDown(TimedDetector):
    """Slowdown: steps take longer than at the beginning, mostly because of one line.

    What it detects:
        The median step of the last blocks takes clearly longer than that of the fastest block.
        The lines of the loop are timed again and compared with their times at the beginning: a
        line that became slower while the rest did not is the cause, unless the device's allocator
        ran out of memory meanwhile: then that is. A slower host slows all lines and is not
        reported, nor is what a thread of the process stood in line for a processor.

    Why it matters:
        Work that grows with the step number has a quadratic total cost: a run that is a fifth
        slower after 1,000 steps is unusable after 100,000.

    Evidence:
        ``before_ms`` and ``now_ms`` of a step, ``line_before_ms`` and ``line_now_ms`` of
        the line, ``explains``: its share of the growth, ``mark``: part of the step,
        ``what``: ``work``, ``wait`` (longer, without more processor time), ``hooks``,
        ``graph``, ``retries`` (of the allocator), or what is mostly intended:
        ``bigger_batches``, ``more_parameters``; ``share`` of a step that was added,
        ``lost`` seconds so far; ``function``, ``statement`` and ``key``; ``headline`` and
        ``source``, the statement and the lines around it.

    Usual causes:
        - A growing list that is searched, averaged, sorted, joined or rewritten on every step.
        - ``register_forward_hook`` or ``register_parametrization`` in the loop or at the start of
          each epoch: every step or epoch registers another one, and every pass runs all of them.
        - The loss holds the graph of earlier steps: backward reaches further and further back.
        - A loop whose length grows with the step number.
        - A plot into axes that are never cleared: each figure draws everything again.
        - Device memory that is nearly full: the allocator empties its cache and starts again
          (MEM007).

    What to do:
        1. Change the line: keep a running sum instead of the history, a set instead of a list,
           a deque with ``maxlen``, append to the file instead of rewriting it.
        2. Register hooks once, before the loop, or remove their handles.

    False alarms:
        Curricula grow on purpose: where the model gets larger tensors or more parameters have
        gradients, it is information. A line that became slower must be measured twice.

    Cost:
        A microsecond per step; lines are timed on two to eight steps at the beginning and, as
        long as steps are slower, again at growing intervals.

    Reproduce:
        ``holdfast run -m holdfast.faults.slow_down`` names the line that makes
        ``python -m holdfast.faults.slow_down`` slower and slower.
    """

    code = "TPT004"
    name = "slow_down"
    other_severities = ((Severity.INFO, "of work that is meant to grow"),)
    kinds = ("line_times",)
    # What gets worse with every step comes before what costs the same each time.
    precedes = "MEM004"
    explains_line = True
    explains_growth = "hooks"
    follows: ClassVar = {"graph": "MEM003 MEM002"}
    fires = rows(8, _SLOWER, _SLOWER)
    silent = rows(8, _HARDLY, _HARDLY)

    @dataclass(frozen=True, kw_only=True)
    class Options(TimedDetector.Options):
        """Measured with benchmarks/results/detection_cpu_arm_2026-11-16.md unless it says guess."""

        explains: float = 0.4
        """Share of the growth that a line must explain."""
        grew: float = 1.7
        """Factor by which a line must have slowed down, beyond the rest."""
        plain: float = 3.0
        """Slowdown that no other process causes for a line that explains ``plainly``; a guess."""
        plainly: float = 0.7
        """Share of the growth that such a line must explain; a guess."""
        bigger: float = 1.15
        """Factor on the size of the model's inputs; a guess."""
        retries: float = 4.0
        """Allocator retries since the beginning that slow the allocating lines; a guess."""

    def _due_claims(
        self, window: Window, events: Sequence[Event]
    ) -> Iterator[tuple[int, TimeClaim]]:
        """As all; that a graph reaches further back takes a value that holds old ones."""
        held = [e.step for e in window.events if _graphs(e)]
        for row, claim in super()._due_claims(window, events):
            step = int(window.rows["step"][row])
            if claim.evidence["what"] != "graph" or any(at <= step for at in held):
                yield row, claim

    def claims(self, event: Event) -> Iterator[TimeClaim]:
        """The line that became slower while the rest did not."""
        look = look_of(event)
        if look is None or look.record.look != "slow" or look.baseline is None:
            return
        grown = self._grown(look, look.baseline)
        if grown is not None:
            yield self._claim(look, grown)

    # ------------------------------------------------------------------ which line

    def _grown(self, look: LineTimesEvent, before: LineProfile) -> _Grown | None:
        now, times = look.now, look.record.times
        early, late = _grouped(look, before), _grouped(look, now)
        risen = max(now.seconds - before.seconds, times.last_block - times.fastest_block, 1e-9)
        grown = self._most_grown(early, late, before, now)
        if grown is not None:
            # Including the model that is called there.
            grown.more = max(grown.more, _at(grown.place, now) - _at(grown.place, before))
            # What a thread of ours stood in line for a processor, others have taken.
            delayed = max(0.0, now.counts.delayed - before.counts.delayed)
            if not self._believed(look, grown, risen, delayed):
                grown = None
        passes = now.spent(*_PASSES) - before.spent(*_PASSES)
        own = grown is not None and grown.line.mark not in _PASSES
        hooks = _hooks(look, before)
        if hooks is not None and not own and passes >= self.options.explains * risen:
            line = CostlyLine((hooks,), "", "model", True, passes, 0.0)
            grown = grown or _Grown(line, 0.0, passes)
            return replace(grown, cause=hooks, what="hooks", explains=_part(grown.more, risen))
        if grown is None:
            return None
        grown.what, grown.explains = self._what(look, before, grown), _part(grown.more, risen)
        return grown if grown.what else None

    def _believed(self, look: LineTimesEvent, grown: _Grown, risen: float, delayed: float) -> bool:
        """Another process may have taken the time of a line that is only a little slower."""
        options, own = self.options, grown.more - delayed
        much = grown.line.seconds >= options.plain * grown.was
        plain = much and own >= options.plainly * risen
        return own >= options.explains * risen and (look.record.times.busier or plain)

    def _most_grown(
        self, early: _Groups, late: _Groups, before: LineProfile, now: LineProfile
    ) -> _Grown | None:
        """The line that slowed down most compared with the others."""
        options, best = self.options, None
        for key, line in late.items():
            first = early.get(key)
            was = first.seconds if first is not None else 0.0
            others = before.seconds - was
            rest = max(1.0, (now.seconds - line.seconds) / others) if others > 0 else 1.0
            grew = line.seconds - was * rest
            if grew > (best.more if best else 0.0) and line.seconds >= options.grew * was * rest:
                best = _Grown(line, was, grew)
        return best

    # ------------------------------------------------------------------ why

    def _what(self, look: LineTimesEvent, before: LineProfile, grown: _Grown) -> str:
        """Reason for the growth of a line; "" where there is no fault."""
        now, line, options = look.now, grown.line, self.options
        if now.per_model > options.bigger * before.per_model > 0:
            return "bigger_batches"
        if line.mark and now.counts.parameters > before.counts.parameters:
            return "more_parameters"
        retries = now.counts.retries - before.counts.retries
        if retries >= options.retries:
            return "retries"
        if line.mark == "backward" and not line.direct:
            # Several ranks wait for the slowest of them there, which RNK002 tells.
            return "" if look.record.ranks > 1 else "graph"
        # Within a library, nothing of the user's has grown.
        if line.mark and not line.direct:
            return ""
        return "work" if look.record.times.busier else "wait"

    # ------------------------------------------------------------------ what is said

    def _claim(self, look: LineTimesEvent, grown: _Grown) -> TimeClaim:
        line, what = grown.line, grown.what
        before, now = look.record.times.fastest_block, look.record.times.last_block
        steps = f"steps take {ms(now):.3g} ms, {ms(before):.3g} ms at the beginning"
        if what in _MEANT:
            said = f"became slower: {steps}; {_MEANT[what]}"
        elif what == "hooks":
            said = f"registers another hook or parametrization every time: {steps}"
        else:
            each = f"{ms(grown.was):.3g} -> {ms(line.seconds):.3g} ms per step"
            why = ", the allocator runs out of memory" if what == "retries" else ""
            slows = "takes longer, and no more of the processor" if what == "wait" else "slows down"
            said = f"{slows} ({each}{why}): {steps}"
        return TimeClaim(
            what=said,
            advice=_advice(what, quoted(grown.place), look.history.get(grown.place, "")),
            severity=Severity.INFO if what in _MEANT else Severity.WARNING,
            confidence=0.5 if what in _MEANT else max(0.5, min(0.95, grown.explains)),
            share=max(0.0, 1 - before / now) if now else 0.0,
            seconds=look.record.times.seconds,
            place=grown.place,
            function=line.function,
            headline=f"steps take {now / before:.3g} times as long as at first" if before else "",
            evidence={
                "before_ms": ms(before),
                "now_ms": ms(now),
                "what": what,
                "line_before_ms": ms(grown.was),
                "line_now_ms": ms(line.seconds),
                "explains": grown.explains,
                "mark": line.mark,
            },
            sure=what not in ("work", "wait", "graph", "hooks"),
        )


@dataclass(slots=True)
class _Grown:
    """A line that takes longer than before."""

    line: CostlyLine
    was: float
    """Seconds before."""
    more: float
    """Seconds by which the step is longer for it."""
    what: str = ""
    explains: float = 0.0
    cause: SourceLine | None = None
    """Another line that makes it grow."""

    @property
    def place(self) -> SourceLine:
        """The line to name."""
        return self.cause or self.line.at


def _graphs(event: Event) -> bool:
    """Whether an event is about a value that keeps graphs."""
    grown = ValueGrowth.of(event)
    return GraphChain.of(event) is not None or (grown is not None and grown.graphs > 0)


_Groups = dict[tuple[str, int, str], CostlyLine]


def _hooks(look: LineTimesEvent, before: LineProfile) -> SourceLine | None:
    """The line that registers another hook every step."""
    now = look.now
    # Since the beginning, and since the last look: what is registered once is no growth.
    least = max(before.counts.registered, now.counts.registered_before)
    more = now.counts.registered > least
    # A model that has grown has more modules too.
    if not more or now.counts.parameters > before.counts.parameters:
        return None
    inside = [at for at in look.registering if look.turn is not None and look.turn.spans(at)]
    return next(iter([*inside, *look.registering]), None)


def _grouped(look: LineTimesEvent, profile: LineProfile) -> _Groups:
    """The lines; those of one small loop together, under the one that takes most.

    What a line calls is apart from its own work, each by its mark: of a line that does all of a
    step, which of them takes most changes from look to look.
    """
    found: _Groups = {}
    for line in profile.lines:
        at, first = line.at, 0
        if line.direct and not line.mark:
            first = at.loop[0]
            if look.turn is not None and look.turn.is_loop(at.file, first):
                first = 0  # the loop of the steps itself
        kind = "loop" if first else "direct" if line.direct else line.mark
        key = (at.file, first or at.line, kind)
        known = found.get(key)
        if known is None:
            found[key] = replace(line)
            continue
        most, other = (line, known) if line.seconds > known.seconds else (known, line)
        found[key] = replace(most, seconds=most.seconds + other.seconds)
    return found


def _at(place: SourceLine, profile: LineProfile) -> float:
    return sum(line.seconds for line in profile.lines if line.at == place)


def _part(more: float, risen: float) -> float:
    return round(max(0.0, min(1.0, more / risen)), 3)


def _advice(what: str, code: str, history: str) -> str:
    if what in _MEANT:
        return "nothing if intended (a curriculum, unfreezing); otherwise find what grows here"
    if what == "hooks":
        return f"call {code} once, before the loop, or remove the handle it returned before"
    if what == "retries":
        return "free some memory: a smaller batch, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    if what == "graph":
        return f"detach what is kept from step to step: backward at {code} reaches further back"
    if what == "wait":
        return f"see what {code} waits for: the device, a disk, a network, a lock, another thread"
    if not history:
        return f"see what grows in {code}: a length, a count, a file; nothing if that is intended"
    return (
        f"do not process all of {history} in {code}: keep a running value, "
        "a deque(maxlen=...), a set for lookups, or run it every N steps"
    )
