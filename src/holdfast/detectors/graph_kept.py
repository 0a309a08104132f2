"""MEM002: a variable keeps the autograd graphs of past steps alive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..records.memory import GraphChain, HeldValue, ValueGrowth
from ..types import Severity
from ._growth import (
    GRAPHS,
    GrowthOptions,
    grows_for_ever,
    in_evaluation,
    substance,
    unbounded,
    weight_of,
)
from ._memory import (
    VariableDetector,
    amount,
    at,
    code_of,
    place_of,
)
from ._source_change import detached, replaced
from ._window import Window


class GraphKept(VariableDetector[ValueGrowth | GraphChain]):
    """Memory leak: a variable keeps the autograd graphs of past steps alive.

    What it detects:
        A container that collects tensors with a graph, or a tensor computed from its own former
        value, whose graph reaches through all steps before: ``total += loss``, a list of losses
        or outputs, a running average, a hook that stores tensors. It is found in local and
        global names, attributes, class attributes, closures, default arguments and nested
        containers.

    Why it matters:
        A graph holds every activation of its step until backward has run, and its nodes and
        their Python objects after that. Memory grows with every step until the process dies
        ("CUDA out of memory" on batch 2, or after some hours), and steps become slower.

    Evidence:
        ``key``: line and variable; ``variable``: as the script would write it; ``bytes_per_step``,
        an estimate without the activations; ``grown_for``: steps; ``rate``: items per step;
        ``age``: steps the graph reaches back; ``heap_slope``: bytes that the process grew with each
        step; ``held``: bytes that graphs of past steps kept when memory ran out, counted at the
        error; ``consequence``: MEM004, where an evaluation built them; ``headline``, ``source``,
        the statement and the lines around it, and ``diff``, the fix where it is one line.

    Usual causes:
        - ``total_loss += loss`` for the log.
        - ``losses.append(loss)``, ``outputs.append(model(x))`` to average or plot later.
        - ``self.last_output = out`` in a list or a moving average on a module or a trainer.
        - A forward hook that stores outputs.

    What to do:
        1. Store a number: ``total_loss += loss.item()``, or ``loss.detach()`` where reading it
           would make the device wait.
        2. ``out.detach().cpu()`` for outputs that are needed later.
        3. If the graph is wanted (truncated backpropagation through time), cut it regularly with
           ``detach()``.

    False alarms:
        Graphs that span several optimizer steps on purpose: a list that the script empties is
        reported only after ``consumed`` steps of growth, a queue of at most ``queue`` places
        never.

    Cost:
        A weak reference on one backward pass in seven; a scan of the script's variables on a few
        steps; lines are traced for at most three steps once something has been found.

    Reproduce:
        ``holdfast run -m holdfast.faults.graph_kept`` names the line that makes
        ``python -m holdfast.faults.graph_kept`` leak.
    """

    code = "MEM002"
    name = "graph_kept"
    kinds = (ValueGrowth, GraphChain)

    @dataclass(frozen=True, kw_only=True)
    class Options(GrowthOptions):
        """Thresholds of all leak detectors, and detection_cpu_arm_2026-11-16.md.

        Attributes:
            consumed: steps of growth of a list that the script empties.
            share: of the memory in use that graphs of past steps must hold to be blamed for an
                out-of-memory error; a guess.
        """

        consumed: int = 60
        share: float = 0.1

    def believes(self, measured: ValueGrowth | GraphChain) -> bool:
        """Whether the script keeps graphs that nothing will use."""
        options = self.options
        if isinstance(measured, GraphChain):
            if measured.held is None or measured.in_use is None:
                return not measured.fed
            return not measured.fed and measured.held >= options.share * measured.in_use
        if substance(measured) != GRAPHS:
            return False
        if measured.single:
            return grows_for_ever(measured, options)
        enough = options.consumed if measured.shrinks else 0
        return unbounded(measured, options) and measured.steps >= enough

    def weight(self, measured: ValueGrowth | GraphChain) -> Severity:
        """An error where it has ended the run."""
        return weight_of(measured, self.severity)

    def cause(self, window: Window, measured: ValueGrowth | GraphChain) -> str:
        """An evaluation, where it is one that builds them."""
        return in_evaluation(window, measured)

    def what(self, measured: ValueGrowth | GraphChain) -> str:
        """The variable, the line and for how long."""
        rate = measured.rate if isinstance(measured, ValueGrowth) else 0
        how = f"{rate:.3g} more per step" if rate > 0 else f"back over {measured.steps:.0f} steps"
        held = measured.held if isinstance(measured, GraphChain) else None
        what = f" ({amount(held)})" if held else ""
        path = measured.path
        return f"{path} keeps the graphs of past steps alive{what}, {how}{at(measured)}"

    def next_move(self, measured: ValueGrowth | GraphChain) -> str:
        """Where to write ``.item()`` or ``.detach()``."""
        return detach_advice(measured)

    def headline(self, measured: ValueGrowth | GraphChain) -> str:
        """The variable that keeps them."""
        return f"{measured.path or 'a variable'} keeps the graphs of past steps alive"

    def diff(self, measured: ValueGrowth | GraphChain) -> str:
        """The same line, storing the value without its graph, where no backward pass needs it."""
        if measured.feeds:
            return ""
        return replaced(measured.to_dict(), _detached(measured, measured.code))

    def numbers(self, measured: ValueGrowth | GraphChain) -> Mapping[str, Any]:
        """How far back, and what the process says."""
        slope = {"heap_slope": measured.heap_slope}
        if isinstance(measured, ValueGrowth):
            return {"rate": measured.rate, **slope}
        held = {} if measured.held is None else {"held": float(measured.held)}
        return {"age": float(measured.age), **slope, **held}


def _detached(held: HeldValue, code: str) -> str:
    """The line without the graph, where what it stores is a tensor itself."""
    return detached(code, single=held.single) if held.plain else ""


def detach_advice(held: HeldValue) -> str:
    """The change for the line that stores."""
    line = code_of(held)
    path = held.path or "the tensor"
    if held.feeds:
        return (
            f"a backward pass goes through what {path} holds: empty it after that pass, and detach "
            "what is kept for longer"
        )
    new = _detached(held, line)
    if new:
        return f"cut the graph: `{line}` -> `{new}`"
    where = f" in `{line}`" if line else ""
    return f"store numbers, not graphs, in {path}: .item() or .detach() each tensor{where}" + (
        f", {place_of(held)}" if place_of(held) else ""
    )
