"""TPT005: stalls; checkpoints, logs, plots or validation keep stopping the loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from ..types import Event, Severity
from ._lines import (
    Line,
    Look,
    Place,
    Profile,
    Turn,
    own_work,
    read_look,
    words_of,
)
from ._timed import (
    Claim,
    TimedDetector,
    ms,
    quoted,
)

_WHAT = {
    "checkpoint": ("saves state", "save once per epoch or every few minutes"),
    "log": ("writes logs", "write less often, append instead of rewriting, do not flush each time"),
    "plot": ("draws", "draw once per epoch, from values that were collected"),
    "gc": ("collects garbage", "leave it to Python, or do it once per epoch"),
    "statistics": ("computes statistics", "do it every few hundred steps, on a sample"),
    "evaluation": ("evaluates", "evaluate once per epoch or on fewer batches"),
    "wait": ("waits for something else", "do not wait for it in the loop"),
    "work": ("does other work", "do it less often if possible"),
}
# Kind of work, by what a statement calls.
_CALLS = {
    "checkpoint": {
        "torch.save", "save", "pickle.dump", "json.dump", "joblib.dump", "np.save", "np.savez",
        "save_pretrained", "save_file", "dump", "fsync", "copyfile", "deepcopy", "state_dict",
    },
    "log": {
        "open", "write", "writerow", "writelines", "flush", "print", "to_csv", "add_scalar",
        "add_scalars", "log", "info", "debug", "dumps", "log_metric",
    },
    "plot": {"savefig", "plot", "hist", "scatter", "imshow", "show", "draw", "subplots", "figure"},
    "gc": {"gc.collect", "collect", "empty_cache"},
    "wait": {"sleep", "subprocess.run", "check_output", "system", "popen", "urlopen", "post"},
    "statistics": {
        "histogram", "histc", "add_histogram", "percentile", "quantile", "svd", "svdvals",
        "eigvals", "matrix_rank", "corrcoef", "unique", "bincount", "confusion_matrix",
    },
}  # fmt: skip
# The same by parts of a name, where a function of the user's does it.
_WORDS = {
    "checkpoint": {"save", "checkpoint", "ckpt", "dump", "snapshot", "persist", "backup", "export"},
    "evaluation": {"eval", "evaluate", "evaluation", "valid", "validate", "validation", "test"},
    "plot": {"plot", "draw", "figure", "render", "visualize", "visualise", "picture"},
    "statistics": {"hist", "histogram", "histograms", "stats", "statistics", "spectrum", "norms"},
    "log": {"log", "logs", "logger", "write", "report", "metrics", "summary", "record", "progress"},
}


class Stall(TimedDetector):
    """Stalls: the loop keeps stopping for something that is not training.

    What it detects:
        Steps that take more than twice the typical step, recur several times in a hundred steps
        and take a good part of the loop's time; or a line that writes or computes
        statistics on every step and takes a large share of it. The lines of such steps are
        timed to say what was done: checkpoint, log, plot, validation, garbage collection.

    Why it matters:
        Training that saves its state every five steps may spend more time saving than
        training. Nothing fails, so nobody notices.

    Evidence:
        ``what`` was done, ``stall_ms`` it takes each time, ``every`` how many steps, ``share``
        of the loop's time, ``step_ms`` of a typical step, ``stalls`` seen; ``lost`` seconds so
        far; ``function``, ``statement`` and ``key``.

    Usual causes:
        - ``torch.save`` or a JSON dump every few steps, with ``fsync`` or to remote storage.
        - A log file that is opened, written and closed on each step; histograms of all weights.
        - Validation over the whole set every few steps.
        - ``gc.collect()`` or ``empty_cache()`` in the loop.

    What to do:
        1. Do it less often; the interval is in the ``if`` above the line.
        2. Move it to a thread, as ``holdfast`` does with its own checkpoints.

    False alarms:
        Validation between two epochs is never reported. Work of no known kind is a warning above
        ``unknown`` of the time; it, and work done on every step, must be measured twice.

    Cost:
        A microsecond per step; lines are timed on the steps at which the next stall is due.

    Reproduce:
        ``holdfast run -m holdfast.faults.stall`` names the line that stops
        ``python -m holdfast.faults.stall`` every few steps.
    """

    code = "TPT005"
    name = "stall"
    kinds = ("line_times",)

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
        explains: float = 0.4
        """Share of the time above a typical step that a line must explain."""
        called: float = 0.2
        """The same for functions that a framework calls on such steps only; a guess."""
        each: float = 0.6
        """How often the line must run on each stall that was timed; a guess."""
        models: float = 0.3
        """Share spent in models that makes it a validation between epochs; a guess."""
        own: float = 0.3
        """Share of a step that a line must take which does this on every step."""
        own_ms: float = 2.0

    def claims(self, event: Event) -> Iterator[Claim]:
        """The line that stops the loop now and then, or on every step."""
        look = read_look(event)
        if look is None:
            return
        if look.purpose == "stall":
            yield from self._stall(look)
        _, after = own_work(look)
        for line in sorted(after, key=lambda line: -line.seconds):
            share = line.seconds / look.now.seconds if look.now.seconds else 0.0
            if share < self.options.own or line.seconds * 1e3 < self.options.own_ms:
                return
            if what := _by_calls(line.at):
                yield self._claim(
                    look, line.at, line.function, what, 1.0, share, line.seconds, look.now.seconds
                )
                return

    def _stall(self, look: Look) -> Iterator[Claim]:
        """The work done on steps that take many times the typical one."""
        turn, options, typical = look.turn, self.options, look.times.typical
        excess = look.now.seconds - typical
        if turn is None or look.baseline is None or not look.stalls or excess <= 0:
            return
        between = all(stall.begins_epoch for stall in look.stalls)
        turn = look.outer if between and look.outer is not None else turn
        best = _most_above(look.now, look.baseline, turn)
        if best is not None and best.seconds >= options.explains * excess:
            if best.hits < options.each:
                return  # one of these steps was long because of it, another for another reason
            place, function, inner = best.at, best.function, turn.inner(best)
            what = _by_calls(place) or _by_calls(inner) or _by_name(best, turn)
        else:
            found = self._elsewhere(look.now, look.baseline, turn, excess)
            if found is None:
                return  # the loop waits for its data, or for another process
            place, function, what, inner = found, "", "evaluation", found
        asks = any(line.at == place and line.mark == "model" for line in look.now.lines)
        if between and (what == "evaluation" or asks):
            if look.now.spent("model") - look.baseline.spent("model") >= options.models * excess:
                return  # ordinary work between two epochs
            what = ""
        every, each = _distance(look), sum(s.excess for s in look.stalls) / len(look.stalls)
        share = each / (each + every * typical)
        claim = self._claim(look, place, function, what or "work", every, share, each, typical)
        yield replace(claim, case=f"{inner.file}:{inner.line}")

    def _elsewhere(
        self, now: Profile, ordinary: Profile, turn: Turn, excess: float
    ) -> Place | None:
        """The line of a validation: it calls the same models as training, from another place."""
        held = [line for line in now.lines if turn.holds(line)]
        known = {turn.inner(line) for line in ordinary.lines if turn.holds(line)}
        known.add(Place(turn.path[turn.depth].file, turn.first))
        new = [(line, at) for line in held if (at := turn.inner(line)) not in known]
        if sum(line.seconds for line, _ in new) < self.options.explains * excess:
            # A framework has the loop, and calls another function of the user's from the same line.
            passed = {place for line in ordinary.lines for place in line.path}
            entered = [
                (line, next((at for at in line.path[turn.depth + 1 :] if at not in passed), None))
                for line in held
            ]
            new = [(line, at) for line, at in entered if at is not None]
            if sum(line.seconds for line, _ in new) < self.options.called * excess:
                return None
        if any(line.mark in ("backward", "optimizer") for line, _ in new):
            return None  # part of the training, as the generator every fifth step
        spent: dict[Place, float] = {}
        for line, at in new:
            spent[at] = spent.get(at, 0.0) + line.seconds
        return max(spent, key=lambda at: spent[at], default=None)

    def _claim(
        self,
        look: Look,
        place: Place,
        function: str,
        what: str,
        every: float,
        share: float,
        each: float,
        step: float,
    ) -> Claim:
        does, cure = _WHAT[what]
        often = "on every step" if every <= 1 else f"about every {every:.0f} steps"
        least = self.options.unknown if what == "work" else self.options.share
        bad = share >= least and every <= self.options.every
        return Claim(
            what=f"{does} {often}: {ms(each):.3g} ms each, a step takes {ms(step):.3g} ms, "
            f"{share:.0%} of the time",
            advice=f"{cure}: {quoted(place)}",
            severity=Severity.WARNING if bad else Severity.INFO,
            confidence=0.9 if bad else 0.5,
            share=share,
            seconds=look.times.seconds,
            place=place,
            function=function,
            evidence={
                "what": what,
                "every": round(every, 1),
                "stall_ms": ms(each),
                "step_ms": ms(step),
                "stalls": len(look.stalls),
            },
            # Another process may have made a line slow, at just that time.
            sure=what != "work" and every > 1,
        )


def _most_above(now: Profile, ordinary: Profile, turn: Turn) -> Line | None:
    """The line of the loop's own work that takes most beyond what it takes on ordinary steps."""
    own = now.own(turn)
    for at, line in ordinary.own(turn).items():
        if at in own:
            # What is done as often on other steps is no stall, however slow it was.
            steady = own[at].hits > 1 and line.hits > own[at].hits / 2
            own[at].seconds -= inf if steady else 1.2 * line.seconds
    return max(own.values(), key=lambda line: line.seconds, default=None)


def _distance(look: Look) -> float:
    """Steps between two stalls; some of the timed ones are not counted."""
    gaps = sorted(b.step - a.step for a, b in pairwise(look.stalls))
    # Of two gaps the longer one: a stall that was timed may be long enough for two steps.
    middle = (len(gaps) - 1) // 2 if len(gaps) > 2 else len(gaps) - 1
    return max(1.0, float(gaps[middle])) if gaps else 1.0


def _by_calls(place: Place) -> str:
    """What a statement is for, by what it calls; "" where that is not known."""
    return next((kind for kind, names in _CALLS.items() if place.calls_any(names)), "")


def _by_name(line: Line, turn: Turn) -> str:
    """The same, by the names of the functions on the way from the loop to the line."""
    found = set(words_of(line.function)).union(*(at.words for at in line.path[turn.depth :]))
    return next((kind for kind, words in _WORDS.items() if words & found), "")
