"""Makes causes of line times: what is to blame for waits, stalls and reads.

Each function returns what an Event will say, or None where nothing stands out. Whether it deserves
a warning is for the detectors; here only that it is there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from ..exams._loops import loop_around, shown, statement
from ..exams._profiles import (
    Line,
    Profile,
    Turn,
    called_models,
    comes_before,
    outer,
    trained_by,
)
from ..exams.reads import Ledger
from ..exams.recompiles import Compiled
from .step_times import StepTimes

# The loop's own work: share of the step and seconds from which it is worth a word.
OWN = 0.3
OWN_SECONDS = 0.002
# Reads per step and per call of a model, and their share of the step.
_READS = 20
_READS_PER_MODEL = 8
_READS_SHARE = 0.12
# How often the line of a stall is passed on each of those that were caught.
_EACH = 0.6
# Of a step that one read waits for a GPU.
_WAITS_SHARE = 0.3

_KINDS = {
    "checkpoint": (
        "torch.save", "save", "pickle.dump", "json.dump", "joblib.dump", "np.save", "np.savez",
        "save_pretrained", "save_file", "dump", "fsync", "copyfile", "deepcopy", "state_dict",
    ),
    "log": (
        "open", "write", "writerow", "writelines", "flush", "print", "to_csv", "add_scalar",
        "add_scalars", "log", "info", "debug", "dumps", "log_metric",
    ),
    "plot": ("savefig", "plot", "hist", "scatter", "imshow", "show", "draw", "subplots", "figure"),
    "gc": ("gc.collect", "collect", "empty_cache"),
    "wait": ("sleep", "subprocess.run", "check_output", "system", "popen", "urlopen", "post"),
    "statistics": (
        "histogram", "histc", "add_histogram", "percentile", "quantile", "svd", "svdvals",
        "eigvals", "matrix_rank", "corrcoef", "unique", "bincount", "confusion_matrix",
    ),
}  # fmt: skip

# The same by parts of a name, where a function of the user's does it.
_WORDS = {
    "checkpoint": {"save", "checkpoint", "ckpt", "dump", "snapshot", "persist", "backup", "export"},
    "evaluation": {"eval", "evaluate", "evaluation", "valid", "validate", "validation", "test"},
    "plot": {"plot", "draw", "figure", "render", "visualize", "visualise", "picture"},
    "statistics": {"hist", "histogram", "histograms", "stats", "statistics", "spectrum", "norms"},
    "log": {"log", "logs", "logger", "write", "report", "metrics", "summary", "record", "progress"},
}
_READING = {"item", "float", "int", "bool", "tolist", "numpy"}


@dataclass(frozen=True, slots=True)
class Found:
    """A cause."""

    kind: str
    share: float
    """Share of the run's time that is lost by it."""
    data: dict[str, Any]


def kind_of_work(line: Line) -> str:
    """What a statement is for, by what it calls; "" where that is not known."""
    called = statement(line.file, line.line).calls
    for kind, names in _KINDS.items():
        if any(call in names or call.split(".")[-1] in names for call in called):
            return kind
    return ""


def kind_by_name(line: Line, depth: int) -> str:
    """The same, by the names of the functions on the way from the loop to the line."""
    names = [line.function]
    for spot in reversed(line.path[depth:]):
        names += [call.split(".")[-1] for call in statement(*spot).calls]
    words = [set(re.findall(r"[a-z]+", re.sub("([A-Z])", r"_\1", name).lower())) for name in names]
    for kind, known in _WORDS.items():
        if any(known & found for found in words):
            return kind
    return ""


def named(line: Line) -> dict[str, Any]:
    """File, line and text of a statement."""
    at = statement(line.file, line.line)
    return {
        "file": shown(line.file),
        "line": at.first or line.line,
        "function": line.function,
        "code": at.text[:160],
    }


def ms(seconds: float) -> float:
    """Milliseconds for an Event."""
    return round(seconds * 1e3, 3)


# ---------------------------------------------------------------------- the loop's own work


def own_work(profile: Profile, turn: Turn) -> tuple[list[Line], list[Line]]:
    """What a step takes beside model, loader and optimizer: before the model is called, and after.

    Both are empty where no model is called, for then nobody knows what is before.
    """
    # A line that asks a model, or for gradients, makes no batch: it is part of the training.
    asked = {line.spot for line in profile.lines if line.mark == "model"}
    own = [
        line
        for line in _own(profile, turn).values()
        if line.seconds > 0 and line.spot not in asked and not _differentiates(line)
    ]
    models = [line for line in called_models(profile) if turn.holds(line)]
    stepping = [line for line in trained_by(profile) if turn.holds(line)]
    if not models:
        return [], []
    before = [line for line in own if comes_before(line, models) and comes_before(line, stepping)]
    return before, [line for line in own if line not in before]


def _differentiates(line: Line) -> bool:
    called = {call.split(".")[-1] for call in statement(*line.spot).calls}
    return bool(called & {"grad", "backward"})


def written_on_every_step(lines: list[Line], profile: Profile) -> Found | None:
    """A line that logs, saves or draws on every step and takes a good part of it."""
    for line in sorted(lines, key=lambda line: -line.seconds):
        share = line.seconds / profile.seconds if profile.seconds else 0.0
        what = kind_of_work(line)
        if what and share >= OWN and line.seconds >= OWN_SECONDS:
            data = {**named(line), "what": what, "every": 1, "share": round(share, 3)}
            data |= {"stall_ms": ms(line.seconds), "step_ms": ms(profile.seconds)}
            return Found("stall", share, data)
    return None


# ---------------------------------------------------------------------- stalls


def stall(
    profile: Profile, usual: Profile, turn: Turn, times: StepTimes, epochs: Set[int] = frozenset()
) -> Found | None:
    """What the loop does on the steps that take many times the usual one.

    Args:
        profile: the lines of such steps.
        usual: those of others.
        turn: the loop.
        times: of all steps.
        epochs: the steps that began one.
    """
    excess = max(profile.seconds - times.usual, 0.0)
    if not times.stalls or not excess:
        return None
    stalls = times.stalled(100)
    between = {stall.step for stall in stalls} <= epochs
    if between:
        turn = outer(turn)
    own = _own(profile, turn)
    for spot, line in _own(usual, turn).items():
        if spot in own:
            # What is done as often on other steps is no stall, however slow it was.
            steady = own[spot].hits > 1 and line.hits > own[spot].hits / 2
            own[spot].seconds -= math.inf if steady else 1.2 * line.seconds
    best = max(own.values(), key=lambda line: line.seconds, default=None)
    if best is not None and best.seconds >= 0.4 * excess:
        if best.hits < _EACH:
            return None  # one of these steps was long because of it, the other for another reason
        above = Line(*turn.inner(best), "", "", 0.0, 0.0, (), True)
        what = kind_of_work(best) or kind_of_work(above) or kind_by_name(best, turn.depth)
        what, at = what or "work", named(best)
    else:
        spot = _elsewhere(profile, usual, turn, excess)
        if spot is None:
            return None  # the loop waits for its data, or for another process
        what, at = "evaluation", named(Line(*spot, "", "", 0.0, 0.0, (), True))
    if between and (what == "evaluation" or (best and _calls_model(best, profile))):
        if _by_models(profile) - _by_models(usual) >= 0.3 * excess:
            return None  # what everybody does between two epochs
        what = "work"
    # Stalls on steps that an exam looked into are not all counted, so not first to last.
    gaps = sorted(b.step - a.step for a, b in pairwise(stalls))
    # Of two gaps the longer one: a stall that was looked into may be long enough for two steps.
    middle = (len(gaps) - 1) // 2 if len(gaps) > 2 else len(gaps) - 1
    every = max(1.0, float(gaps[middle]) if gaps else 1.0)
    lost = sum(s.excess for s in stalls) / len(stalls)
    share = lost / (lost + every * times.usual)
    if every == 1 and what == "work" and best is not None and _reads(best):
        return Found("host_reads", share, _reads_of(best, best.hits, share, times.usual))
    return Found(
        "stall",
        share,
        {
            **at,
            "what": what,
            "every": round(every, 1),
            "share": round(share, 3),
            "stall_ms": ms(lost),
            "step_ms": ms(times.usual),
            "stalls": len(stalls),
        },
    )


def _calls_model(line: Line, profile: Profile) -> bool:
    return any(other.spot == line.spot and other.mark == "model" for other in profile.lines)


def _by_models(profile: Profile) -> float:
    return sum(line.seconds for line in profile.lines if line.mark == "model")


def _elsewhere(
    profile: Profile, usual: Profile, turn: Turn, excess: float
) -> tuple[str, int] | None:
    """A validation is made of what training is made of, in another place: the line of that."""
    held = [line for line in profile.lines if turn.holds(line)]
    known = {turn.inner(line) for line in usual.lines if turn.holds(line)}
    known.add((turn.path[turn.depth][0], turn.first))
    there = {s: t for s, t in _in_turn(profile, turn).items() if s not in known}
    place = turn.inner
    if sum(there.values()) < 0.4 * excess:
        # A framework has the loop, and calls another function of the user's from the same line.
        spots = {spot for line in usual.lines for spot in line.path}
        new = [(line, s) for line in held for s in line.path[turn.depth + 1 :] if s not in spots]
        first: dict[int, tuple[str, int]] = {}
        for line, spot in new:
            first.setdefault(id(line), spot)
        there = {}
        for line in held:
            if (spot := first.get(id(line))) is not None:
                there[spot] = there.get(spot, 0.0) + line.seconds
        if sum(there.values()) < 0.2 * excess:
            return None

        def place(line: Line) -> tuple[str, int]:
            return first.get(id(line), ("", 0))

    trains = {"backward", "optimizer"}
    if any(line.mark in trains and place(line) in there for line in held):
        return None  # another part of the training, as the generator every fifth step
    return max(there, key=lambda s: there[s]) if there else None


def _reads(line: Line) -> bool:
    called = {call.split(".")[-1] for call in statement(*line.spot).calls}
    return line.hits >= _READS and bool(called & _READING)


def _reads_of(line: Line, count: float, share: float, usual: float) -> dict[str, Any]:
    return {
        **named(line),
        "read": "item",
        "reads": round(count),
        "line_ms": ms(line.seconds),
        "share": round(share, 3),
        "step_ms": ms(usual),
    }


def _own(profile: Profile, turn: Turn) -> dict[tuple[str, int], Line]:
    """The loop's own work, line by line: not of the model, the loader, the optimizer."""
    lines = [line for line in profile.lines if not line.mark and line.direct and turn.holds(line)]
    return Profile(lines=lines).by_spot()


def _in_turn(profile: Profile, turn: Turn) -> dict[tuple[str, int], float]:
    """Seconds of each line of the loop itself, with all that it calls."""
    inner: dict[tuple[str, int], float] = {}
    for line in profile.lines:
        if turn.holds(line):
            inner[turn.inner(line)] = inner.get(turn.inner(line), 0.0) + line.seconds
    return inner


# ---------------------------------------------------------------------- reads and recompilations


def host_reads(ledger: Ledger, profile: Profile, turn: Turn | None, usual: float) -> Found | None:
    """The line that reads tensors number by number."""
    lines = profile.by_spot()
    by_read = sorted(ledger.lines.items(), key=lambda item: -item[1].count)
    for (code, number), read in by_read:
        count = read.count // max(1, ledger.steps)
        if count < _READS or count < _READS_PER_MODEL * profile.models:
            continue
        file = code.co_filename
        first, last = loop_around(file, number)
        around = range(first, last + 1) if first else (number,)
        if turn is not None and file == turn.path[turn.depth][0] and first <= turn.first <= last:
            around = (number,)  # the loop of the steps itself
        own = sum(line.seconds for line in lines.values() if _in(line, file, around))
        share = own / profile.seconds if profile.seconds else 0.0
        # The reads alone, on the steps that were counted, and not under a trace.
        share = max(share, read.seconds / max(1, ledger.steps) / usual if usual else 0.0)
        if share < _READS_SHARE:
            continue
        line = Line(file, number, code.co_name, "", own, 0.0, (), True)
        return Found(
            "host_reads",
            share,
            {
                **named(line),
                "read": read.name,
                "reads": count,
                "read_ms": ms(read.seconds / max(1, ledger.steps)),
                "line_ms": ms(own),
                "share": round(share, 3),
                "step_ms": ms(usual),
            },
        )
    return _waits_for_device(ledger, usual)


def _waits_for_device(ledger: Ledger, usual: float) -> Found | None:
    """A single read that waits for a GPU: the host cannot prepare the next step meanwhile."""
    if not torch.cuda.is_initialized() or not ledger.lines or not usual:
        return None
    (code, number), read = max(ledger.lines.items(), key=lambda item: item[1].seconds)
    seconds, count = (each / max(1, ledger.steps) for each in (read.seconds, read.count))
    share = seconds / usual
    if share < _WAITS_SHARE or count < 1:
        return None
    line = Line(code.co_filename, number, code.co_name, "", seconds, 0.0, (), True)
    told = _reads_of(line, count, min(1.0, share), usual)
    return Found("host_reads", 0.0, {**told, "read": read.name, "waits": True})


def _in(line: Line, file: str, around: Iterable[int]) -> bool:
    return line.file == file and line.line in around and line.direct


def recompiled(compiled: Compiled, trained: float) -> dict[str, Any] | None:
    """A function that is compiled again for the same reason, so many seconds into the run."""
    same = max(compiled.reasons.values(), default=0)
    # Told when it is clear, and again when there are twice as many.
    if max(same, compiled.times // 2) not in (3, 6, 12, 24, 48):
        return None
    return {
        "file": shown(compiled.file),
        "line": compiled.line,
        "code": statement(compiled.file, compiled.line).text[:160] if compiled.line else "",
        "name": compiled.name,
        "defined": compiled.defined,
        "times": compiled.times,
        "same": same,
        "seconds": round(compiled.seconds, 3),
        "lost": round(compiled.seconds, 3),
        "share": round(compiled.seconds / max(1e-9, compiled.seconds + trained), 3),
        "guard": compiled.reason,
    }


def by_spot(lines: Iterable[Line]) -> list[Line]:
    """Lines with the same place added up, whoever called them."""
    return list(Profile(lines=list(lines)).by_spot().values())
