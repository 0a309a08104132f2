"""Makes a cause of line times of before and now: why steps have become slower."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..exams._growers import REGISTERS, draws_more, registers
from ..exams._loops import kept, loop_around, statement
from ..exams._profiles import Line, Profile, Turn
from ..probes.memory import counters
from .step_times import StepTimes
from .time_causes import Found, ms, named

# A slow-down has a cause when a line explains this share of it and grew more than the rest did.
_EXPLAINS = 0.4
_GREW = 1.7
# Lines that are passed this often in a step; what the trace may add to one of them.
_OFTEN = 64
_TRACED = 2e-6
# What a line of Python and a call of a library take at least: counts grow whatever clocks say.
_LINE = 4e-8
_CALL = 1e-7
# Retries of an allocator since the beginning that make steps slower; on every which step of those
# whose lines are timed, they are what makes a line slow; and what is left of a clock.
_RETRIES = 4
_EVERY = 4
_CLOCK = 0.85
# Calls of a model by a loop that counts, of which there are so many times more, are not meant.
_PASSES = 2.5
# Datasets within each other that a loop has made, and nobody by hand.
_NESTED = 8
_PLACE = ("file", "line", "function", "code")


@dataclass(frozen=True, slots=True)
class Reference:
    """How a step was at some time."""

    profile: Profile
    parameters: int
    """How many have gradients."""
    nodes: int
    """Of the loss's graph; 0 where nobody has counted."""
    registered: int = 0
    """Hooks on the models, and modules in them."""
    retries: int = 0
    """Of the device's allocator, so far."""
    clock: float = 0.0
    """Of the device, in MHz; 0 where nobody knows."""
    runs_out: float = 0.0
    """Retries per step while the lines were timed."""
    nested: tuple[int, str] = (0, "")
    """Datasets in datasets, and the kind of the outermost one."""


def state(
    profile: Profile,
    parameters: int,
    nodes: int,
    models: Iterable[nn.Module],
    since: tuple[int, int] = (0, 1),
    nested: tuple[int, str] = (0, ""),
) -> Reference:
    """How steps are now; ``since`` are the retries before these steps, and how many these are."""
    count, (begun, steps) = retries(), since
    runs_out = (count - begun) / max(1, steps)
    registered = registered_on(models)
    return Reference(profile, parameters, nodes, registered, count, _clock(), runs_out, nested)


def slow_down(
    before: Reference, now: Reference, turn: Turn | None, times: StepTimes
) -> Found | None:
    """The line that has grown while the rest has not; else what the device does by itself."""
    found = _grown(before, now, turn, times)
    # An allocator that runs out makes the lines slow that allocate.
    runs_out = now.runs_out * _EVERY >= 1 and (found is None or _by_its_time(found))
    if found is not None and not found.data.get("mark") and not runs_out:
        return found
    data: dict[str, Any] = {"before_ms": ms(times.reference), "now_ms": ms(times.middle)}
    share = max(0.0, 1 - times.reference / times.middle) if times.middle else 0.0
    if runs_out or now.retries - before.retries >= _RETRIES:
        data |= {"what": "retries", "retries": now.retries - before.retries}
        if runs_out and found is not None:
            data |= {key: found.data[key] for key in _PLACE}
    elif found is None and 0 < now.clock < _CLOCK * before.clock:
        data |= {"what": "clocks", "clock_before": before.clock, "clock_now": now.clock}
    else:
        return found
    return Found("slow_down", share, data)


def _by_its_time(found: Found) -> bool:
    """Whether only the clock says that a line has grown, and nothing that can be counted."""
    return found.data["what"] == "work" and not found.data["counted"]


def retries() -> int:
    """How often the device's allocator has run out so far; 0 without a device."""
    return int(counters().get("num_alloc_retries", 0)) if torch.cuda.is_initialized() else 0


def _clock() -> float:
    if not torch.cuda.is_initialized():
        return 0.0
    try:
        return float(torch.cuda.clock_rate())
    except Exception:  # nvidia-ml-py is not there, or the driver does not say: many kinds of errors
        return 0.0


def _grown(before: Reference, now: Reference, turn: Turn | None, times: StepTimes) -> Found | None:
    early, late = _grouped(before.profile, turn), _grouped(now.profile, turn)
    old, new = before.profile.seconds, now.profile.seconds
    risen = max(new - old, times.middle - times.reference)
    bigger = now.profile.per_model > 1.15 * before.profile.per_model > 0
    data: dict[str, Any] = {"before_ms": ms(times.reference), "now_ms": ms(times.middle)}
    share = max(0.0, 1 - times.reference / times.middle) if times.middle else 0.0
    joined = _joined(now.profile, turn) if bigger else None
    if joined is not None:
        was = before.profile.by_spot().get(joined.spot)
        data |= {**named(joined), "what": "history", "explains": 0.8, "mark": ""}
        data |= {"line_before_ms": ms(was.seconds if was else 0.0)}
        return Found("slow_down", share, data | {"line_now_ms": ms(joined.seconds)})
    best, was, most = _most_grown(early, late, old, new)
    counted = False
    if best is not None:
        # With what the model does that is called there.
        most = max(most, _at(best, now.profile) - _at(best, before.profile))
    # Another process may have taken the time of a line that is only three times slower.
    sure = times.busier or (best is not None and best.seconds >= 3 * was and most >= 0.7 * risen)
    if best is None or most < _EXPLAINS * risen or best.seconds < 0.12 * new or not sure:
        best, was, most = _most_counted(early, late, risen)
        counted = True
    piled = _piled_up(before, now, early, late, risen)
    if piled is not None and (best is None or counted):
        line, explains = piled
        at = {**named(line), "what": "hooks", "explains": explains, "mark": "model"}
        return Found("slow_down", share, data | at)
    if best is None:
        return None
    data |= {
        **named(best),
        "line_before_ms": ms(was),
        "line_now_ms": ms(best.seconds),
        "explains": round(min(1.0, most / risen), 3),
        "mark": best.mark,
        "what": "work",
        "counted": counted,
    }
    hooked = _hooked(now.profile, turn)
    if hooked is None and _registered_more(before, now):
        hooked = _registers(best)
    if hooked is not None and best.mark in ("model", "backward"):
        data |= {**named(hooked), "what": "hooks"}
    elif bigger or (counted and _by_condition(best)):
        data["what"] = "bigger_batches"
    elif 1.2 < _more_passes(before, now) < _PASSES and _counts(best):
        return None  # a curriculum, as long as it does not go on and on
    elif now.parameters > before.parameters and best.mark:
        data["what"] = "more_parameters"
    elif best.mark == "backward" and not best.direct:
        if not now.nodes > 1.2 * before.nodes > 0:
            return None
        data["what"] = "graph"
    elif now.nested[0] > before.nested[0] + _NESTED and (line := kept(best.file, now.nested[1])):
        data |= _instead_of(best, line) | {"what": "nested"}
    elif not best.mark and (line := draws_more(*best.spot)):
        data |= _instead_of(best, line) | {"what": "drawn"}
    elif best.mark and not best.direct:
        return None  # within a library, and nothing of the user's has grown
    return Found("slow_down", share, data)


def _instead_of(best: Line, line: int) -> dict[str, Any]:
    """The line that lets another one of its file grow, and that one."""
    return {**named(Line(best.file, line, "", "", 0.0, 0.0, (), True)), "spent": best.line}


def graph_size(loss: object, most: int = 4000) -> int:
    """Nodes of a loss's graph, up to so many."""
    root = getattr(loss, "grad_fn", None)
    seen: set[object] = {root} if root is not None else set()
    todo = list(seen)
    while todo and len(seen) < most:
        for node, _ in getattr(todo.pop(), "next_functions", ()):
            if node is not None and node not in seen:
                seen.add(node)
                todo.append(node)
    return len(seen)


def registered_on(models: Iterable[nn.Module]) -> int:
    """How many hooks there are on some models and their weights, and modules in them."""
    modules = [module for model in models for module in model.modules()]
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules)
    hooks += sum(len(m._backward_hooks) for m in modules)
    weights = [weight for m in modules for weight in m._parameters.values() if weight is not None]
    hooks += sum(len(weight._backward_hooks or ()) for weight in weights)
    return len(modules) + hooks


def _piled_up(
    before: Reference, now: Reference, early: dict[Any, Line], late: dict[Any, Line], risen: float
) -> tuple[Line, float] | None:
    """Who registers something on a model again and again, where passes are slower for it."""
    if not _registered_more(before, now):
        return None
    passes = [line for line in late.values() if line.mark in ("model", "backward")]
    was = sum(line.seconds for line in early.values() if line.mark in ("model", "backward"))
    grew = sum(line.seconds for line in passes) - was
    found = [line for line in map(_registers, passes) if line is not None]
    return (found[0], round(min(1.0, grew / risen), 3)) if found and grew >= 0.5 * risen else None


def _more_passes(before: Reference, now: Reference) -> float:
    """How many times as often the models are called in a step."""
    return now.profile.models / before.profile.models if before.profile.models else 0.0


def _registered_more(before: Reference, now: Reference) -> bool:
    """Whether there is more on the models: hooks, modules without parameters of their own."""
    return now.registered > before.registered and now.parameters <= before.parameters


def _counts(line: Line) -> bool:
    """Whether the loop around a line counts up to a number, and goes over nothing."""
    first = loop_around(*line.spot)[0]
    text = statement(line.file, first).text if first else ""
    return "range(" in text and "len(" not in text


def _registers(line: Line) -> Line | None:
    """The line that registers hooks, in the file of one of them."""
    for number in registers(line.file):
        return Line(line.file, number, "", "", 0.0, 0.0, (), True)
    return None


def _most_grown(
    early: dict[Any, Line], late: dict[Any, Line], old: float, new: float
) -> tuple[Line | None, float, float]:
    """The line that has grown most beyond what all have, its time before, and by how much."""
    best: Line | None = None
    before = most = 0.0
    for key, line in late.items():
        first = early.get(key)
        was, hits = (first.seconds, first.hits) if first is not None else (0.0, 0.0)
        rest = max(1.0, (new - line.seconds) / (old - was)) if old > was else 1.0
        grew = line.seconds - was * rest
        # A line that is passed often may look slower under the trace than it is.
        if line.hits > _OFTEN and line.hits < 1.25 * hits and grew < _TRACED * line.hits:
            continue
        if grew > most and line.seconds >= _GREW * was * rest:
            best, before, most = line, was, grew
    return best, before, most


def _most_counted(
    early: dict[Any, Line], late: dict[Any, Line], risen: float
) -> tuple[Line | None, float, float]:
    """The line that is passed so much more often that this alone explains a good part."""
    best: Line | None = None
    before = most = 0.0
    for key, line in late.items():
        first = early.get(key)
        was = _least(first) if first is not None else 0.0
        work = _least(line)
        if line.direct and work > 1.5 * was and work - was > most:
            best, before, most = line, was, work - was
    return (best, before, most) if most >= 0.3 * risen else (None, 0.0, 0.0)


def _at(line: Line, profile: Profile) -> float:
    return sum(other.seconds for other in profile.lines if other.spot == line.spot)


def _least(line: Line) -> float:
    return line.hits * _LINE + line.calls * _CALL


def _by_condition(line: Line) -> bool:
    """Whether the loop around a line ends when something happens: an episode, a convergence."""
    first = loop_around(*line.spot)[0]
    return statement(line.file, first).text.startswith("while") if first else False


def _grouped(profile: Profile, turn: Turn | None) -> dict[Any, Line]:
    """The lines; those of one small loop together, under the one that takes most."""
    found: dict[Any, Line] = {}
    for line in profile.by_spot().values():
        first = 0
        if line.direct and not line.mark:
            head = loop_around(line.file, line.line + 1)[0]
            first = line.line if head == line.line else loop_around(*line.spot)[0]
            if turn is not None and (line.file, first) == (turn.path[turn.depth][0], turn.first):
                first = 0  # the loop of the steps itself
        key = (line.file, first) if first else (line.file, line.line, line.direct)
        known = found.get(key)
        if known is None or line.seconds > known.seconds:
            found[key] = line
            line, known = known, line
        if line is not None and known is not None:
            known.seconds += line.seconds
            known.hits += line.hits
            known.calls += line.calls
    return found


def _joined(profile: Profile, turn: Turn | None) -> Line | None:
    """A line of the loop that joins something which another line of it lets grow."""
    if turn is None:
        return None
    own = [line for line in profile.lines if not line.mark and line.direct and turn.holds(line)]
    grown = {statement(*line.spot).grows for line in own if line.hits} - {""}
    joins = [
        line
        for line in own
        if {call.split(".")[-1] for call in statement(*line.spot).calls}
        & {"cat", "stack", "concatenate", "vstack", "array", "tensor", "hstack"}
        and {name.split(".")[0] for name in grown} & statement(*line.spot).names
    ]
    return max(joins, key=lambda line: line.seconds, default=None)


def _hooked(profile: Profile, turn: Turn | None) -> Line | None:
    """A line of the loop that registers a hook on every turn."""
    for line in profile.lines:
        if line.hits and line.direct and (turn is None or turn.holds(line)):
            calls = [call.split(".")[-1] for call in statement(*line.spot).calls]
            if any(REGISTERS.match(f"{call}(") for call in calls):
                return line
    return None
