"""TPT005: stalls; checkpoints, logs, plots or validation keep stopping the loop."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from ..source.diffs import replaced
from ..types import Event, Severity
from ._examples import rows
from ._line_examples import costs, timed_lines
from ._lines import (
    CostlyLine,
    LineProfile,
    LineTimesEvent,
    SourceLine,
    TrainingLoop,
    look_of,
)
from ._stall_kinds import by_calls, by_name, certain
from ._timed import (
    TimeClaim,
    TimedDetector,
    ms,
    quoted,
    shown,
)

_WHAT = {
    "checkpoint": ("saves", "save once per epoch or every few minutes"),
    "log": ("writes logs", "write less often, append instead of rewriting, do not flush each time"),
    "plot": ("draws", "draw once per epoch, from values that were collected"),
    "gc": ("collects garbage", "leave it to Python, or do it once per epoch"),
    "statistics": ("computes statistics", "do it every few hundred steps, on a sample"),
    "evaluation": ("evaluates", "evaluate once per epoch or on fewer batches"),
    "wait": ("waits for something else", "do not wait for it in the loop"),
    "work": ("does other work", "do it less often if the training allows that"),
    "training": (
        "makes what training goes on with",
        "do it less often if the training may go on with older values",
    ),
}
# What may be done on every N-th step as well as on each; the rest has its own right time.
_RARELY = ("checkpoint", "log", "plot", "statistics")
_ROUND = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_LEFT = 0.02
# Share of a stall that is spent in models where it is called an evaluation; a guess.
_EVALUATES = 0.3

_SAVES = {57: {"calls": ("torch.save",), "code": "torch.save(state, path)"}}
_STALLS = timed_lines(
    "stall", [costs(57, 0.02), costs(52, 0.002)], [costs(52, 0.002)], sources=_SAVES,
    stalls=tuple((step, 0.02, False) for step in range(10, 60, 5)),
)  # fmt: skip
# Another process took the time: the lines were as fast as ever when they were timed.
_ELSEWHERE = timed_lines(
    "stall", [costs(57, 0.001), costs(52, 0.002)], [costs(52, 0.002)], sources=_SAVES,
    stalls=_STALLS.stalls,
)  # fmt: skip


class Stall(TimedDetector):
    """Stalls: the loop keeps stopping for something that is not training.

    What it detects:
        Steps that take more than twice the typical step, recur several times in a hundred steps
        and take a good part of the loop's time. The lines of such steps are timed to say what was
        done: checkpoint, log, plot, validation, garbage collection.

    Why it matters:
        Training that saves its state every five steps may spend more time saving than
        training. Nothing fails, so nobody notices.

    Evidence:
        ``what`` was done, ``stall_ms`` it takes each time, ``every`` how many steps, ``share`` of
        the loop's time, ``step_ms`` of a typical step, ``stalls`` seen; ``lost`` seconds so far;
        ``function``, ``statement`` and ``key``; ``headline``, ``source``, the statement and the
        lines around it, and ``diff``, the fix where it is one line.

    Usual causes:
        - ``torch.save`` or a JSON dump every few steps, with ``fsync`` or to remote storage.
        - A log file that is rewritten every few steps; histograms of all weights.
        - Validation over the whole set every few steps.
        - ``gc.collect()`` or ``empty_cache()`` in the loop.

    What to do:
        1. Do it less often; the interval is in the ``if`` above the line.
        2. Move it to a thread, as ``holdfast`` does with its own checkpoints.

    False alarms:
        Validation between two epochs is never reported. Work of no known kind is a warning above
        ``unknown`` of the time, and must be measured twice.

    Cost:
        A microsecond per step; lines are timed on the steps at which the next stall is due.

    Reproduce:
        ``holdfast run -m holdfast.faults.stall`` names the line that stops
        ``python -m holdfast.faults.stall`` every few steps.
    """

    code = "TPT005"
    name = "stall"
    other_severities = ((Severity.INFO, "where it takes a small share of the time"),)
    kinds = ("line_times",)
    fires = rows(8, _STALLS, _STALLS)
    silent = rows(8, _ELSEWHERE, _ELSEWHERE)

    @dataclass(frozen=True, kw_only=True)
    class Options(TimedDetector.Options):
        """Measured with benchmarks/results/detection_cpu_arm_2026-11-16.md unless it says guess."""

        worth: float = 0.08
        """Seconds that must be lost; a guess."""
        share: float = 0.2
        """Share of the time above which it is a warning."""
        every: float = 34.0
        """Largest number of steps between two stalls."""
        unknown: float = 0.35
        """The same for work of no known kind."""
        caught: float = 0.5
        """Part of the shortest stall that the timed one must reach in its lines; a guess."""
        explains: float = 0.4
        """Share of the time above a typical step that a line must explain."""
        models: float = 0.3
        """Share of it spent in models that makes it a validation between epochs; a guess."""

    def claims(self, event: Event) -> Iterator[TimeClaim]:
        """The line that stops the loop now and then, or on every step."""
        look = look_of(event)
        if look is None:
            return
        if look.record.look == "stall":
            yield from self._stall(look)

    def _stall(self, look: LineTimesEvent) -> Iterator[TimeClaim]:
        """The work done on steps that take many times the typical one."""
        turn, options, typical = look.turn, self.options, look.record.times.typical
        excess = look.now.seconds - typical
        if turn is None or look.baseline is None or not look.stalls or excess <= 0:
            return
        timed = look.now.seconds - min(typical, look.baseline.seconds)
        if timed < options.caught * min(stall.excess for stall in look.stalls):
            return  # none of those that are reported: another process took their time
        between = all(stall.begins_epoch for stall in look.stalls)
        turn = look.outer if between and look.outer is not None else turn
        above = list(_above(look.now, look.baseline, turn))
        own = [(more, line) for _, more, line in above if line.direct and not line.mark]
        more, best = max(own, key=lambda pair: pair[0], default=(0.0, None))
        if best is not None and more >= options.explains * excess:
            place, function, inner = best.at, best.function, turn.inner(best)
            way = best.path[turn.depth :]
            what = by_calls(place) or by_calls(inner) or by_name(function, way)
            reported = what if certain(what, function, (inner, *way)) else ""
            if what == "evaluation" and _models(look) >= _EVALUATES * excess:
                reported = what
        else:
            spent: dict[SourceLine, float] = {}
            for entry, seconds, _ in above:
                if entry is not None:
                    spent[entry] = spent.get(entry, 0.0) + seconds
            if sum(spent.values()) < options.explains * excess:
                return  # the loop waits for its data, or for another process
            if any(e and line.mark in ("backward", "optimizer") for e, _, line in above):
                return  # part of the training, as the generator every fifth step
            place = inner = max(spent, key=lambda at: spent[at])
            function, what = "", "evaluation"
            reported = what if _models(look) >= _EVALUATES * excess else ""
        if between and what == "evaluation":
            if _models(look) >= options.models * excess:
                return  # ordinary work between two epochs
            what = reported = ""
        if {place, inner} & set(look.feeds):
            reported = "training"
        every, each = _distance(look), sum(s.excess for s in look.stalls) / len(look.stalls)
        share = each / (each + every * typical)
        least = options.share if what else options.unknown
        bad = share >= least and every <= options.every and reported != "training"
        # Another process may have made a line slow, at just that time.
        sure = bool(what) and every > 1
        claim = self._claim(look, place, function, reported or "work", every, share, each, typical)
        severity = Severity.WARNING if bad else Severity.INFO
        claim = replace(claim, severity=severity, confidence=0.9 if bad else 0.5, sure=sure)
        yield replace(claim, case=f"{inner.file}:{inner.line}")

    def _claim(
        self,
        look: LineTimesEvent,
        place: SourceLine,
        function: str,
        what: str,
        every: float,
        share: float,
        each: float,
        step: float,
    ) -> TimeClaim:
        does, cure = _WHAT[what]
        often = "on every step" if every <= 1 else f"about every {every:.0f} steps"
        return TimeClaim(
            what=f"{does} {often}: {ms(each):.3g} ms each, a step takes {ms(step):.3g} ms, "
            f"{share:.0%} of the time",
            advice=f"{cure}: {quoted(place)}",
            severity=Severity.INFO,
            confidence=0.5,
            share=share,
            seconds=look.record.times.seconds,
            place=place,
            function=function,
            headline=f"{does} {often}",
            diff=_less_often(place, what, each, step),
            evidence={
                "what": what,
                "every": round(every, 1),
                "stall_ms": ms(each),
                "step_ms": ms(step),
                "stalls": len(look.stalls),
            },
        )


def _less_often(place: SourceLine, what: str, each: float, step: float) -> str:
    """The statement on every N-th turn of its loop, where that has a counter, as a diff.

    N is a round number that leaves it one part in fifty of the time.
    """
    counter = re.match(r"(\s*)for (\w+)(?:, .+)? in (?:enumerate|range|trange)\(", place.head)
    data = shown(place)
    first = next((text for number, text in place.excerpt if number == place.first), "")
    # One level below the loop: what stands under a condition is done now and then already.
    inside = (
        counter is not None
        and first.startswith(f"{counter[1]}    ")
        and (not first[len(counter[1]) + 4 :].startswith(" "))
    )
    if counter is None or not inside or what not in _RARELY or counter[2] == "_" or step <= 0:
        return ""
    least = each / step / _LEFT
    every = next((n for n in _ROUND if n >= least), _ROUND[-1])
    new = f"if {counter[2]} % {every} == 0:\n{textwrap.indent(data['code'], '    ')}"
    return replaced(data, new)


def _above(
    now: LineProfile, ordinary: LineProfile, turn: TrainingLoop
) -> Iterator[tuple[SourceLine | None, float, CostlyLine]]:
    """Lines that take longer than on ordinary steps, and by how much.

    The first is the outermost line on the way that ordinary steps do not pass; None where they
    pass all of them.
    """
    known = {(line.path, line.mark, line.direct): line for line in ordinary.lines}
    passed = {place for line in ordinary.lines for place in line.path}
    for line in now.lines:
        if not turn.holds(line) or line.mark == "fetch":
            continue
        same = known.get((line.path, line.mark, line.direct))
        # What is done as often on other steps is no stall, however slow it was; nor what all steps
        # do in turn, as long as an episode or a sequence lasts.
        if same is not None and line.hits > 1 and same.hits > min(1.0, line.hits / 2):
            continue
        entry = next((at for at in line.path[turn.depth :] if at not in passed), None)
        yield entry, line.seconds - (1.2 * same.seconds if same is not None else 0.0), line


def _models(look: LineTimesEvent) -> float:
    """Seconds that models take on stalled steps more than on ordinary ones."""
    before = look.baseline.spent("model") if look.baseline is not None else 0.0
    return look.now.spent("model") - before


def _distance(look: LineTimesEvent) -> float:
    """Steps between two stalls; some of the timed ones are not counted."""
    gaps = sorted(b.step - a.step for a, b in pairwise(look.stalls))
    # Of two gaps the longer one: a stall that was timed may be long enough for two steps.
    middle = (len(gaps) - 1) // 2 if len(gaps) > 2 else len(gaps) - 1
    return max(1.0, float(gaps[middle])) if gaps else 1.0
