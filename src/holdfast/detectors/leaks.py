"""MEM001, MEM002, MEM003 and MEM005: a variable holds more with every step.

One measurement with four verdicts. What the variable holds decides which of them it is, so that
exactly one detector reports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ..records.memory import GraphChain, ValueGrowth
from ..source.diffs import followed_by, replaced
from ..types import Severity
from . import _leak_fixes
from ._examples import rows
from ._growth import (
    GRAPHS,
    OBJECTS,
    STATES,
    TENSORS,
    GrowthOptions,
    grows_for_ever,
    in_evaluation,
    speed,
    substance,
    unbounded,
)
from ._memory import Held, VariableDetector, amount, at
from ._window import Window


class LeakDetector(VariableDetector[Held]):
    """Base class: reports what variables hold, of one kind of content."""

    made_of: ClassVar[str]
    """The kind of content it reports."""

    def believes(self, measured: Held) -> bool:
        """Whether it holds that kind of content, and more of it for ever."""
        return substance(measured) == self.made_of and self.lasts(measured)

    def lasts(self, measured: Held) -> bool:
        """Whether nothing bounds it; a graph that reaches back further and further is none."""
        return not isinstance(measured, ValueGrowth) or grows_for_ever(measured, self.options)

    def headline(self, measured: Held) -> str:
        """What grows."""
        return f"{measured.path or 'a container'} grows with every step"


_LIST = ValueGrowth(
    file="train.py", line=31, seen="trace", path="losses", name="losses", how="local",
    scope="train.py:main", function="main", heap_slope=5e3, bytes=65536.0, rate=1.0, size=8,
    steps=8, graphs=0, tensor_bytes=65536.0, other_bytes=100.0, in_evaluation=True,
)  # fmt: skip
_STATE = GraphChain(
    file="train.py", line=31, seen="trace", path="hidden", name="hidden", how="local",
    scope="train.py:main", function="main", heap_slope=5e3, bytes=0.0, steps=8, age=8, fed=True,
)  # fmt: skip


class TensorLeak(LeakDetector[ValueGrowth]):
    """Memory leak: tensors are collected and never freed, on the device or on the host.

    What it detects:
        A container that keeps its content and gets more tensors every step, or a tensor that is
        concatenated to itself (``bank = torch.cat([bank, x])``), at least ``least`` bytes per
        step. Tensors with a graph are MEM002.

    Why it matters:
        The run goes out of memory sooner or later, mostly far from the cause, and a device long
        before the host.

    Evidence:
        ``key``: line and variable; ``variable``, ``bytes_per_step`` (estimated from the newest
        items), ``rate`` (items per step), ``size`` (items now), ``grown_for`` (steps),
        ``heap_slope``: bytes that the process grew with each step, ``on_device``; ``consequence``:
        MEM004, where an evaluation made them; ``headline`` and ``source``, the statement and the
        lines around it.

    Usual causes:
        - Predictions, features or inputs collected for a metric or a plot, and never cleared.
        - A cache or a replay memory without a bound, or with keys that never recur.
        - A hook that stores gradients or activations.

    What to do:
        1. Keep only what is needed: a number, a sum, the last few
           (``collections.deque(maxlen=...)``).
        2. Clear the container when its epoch is over.
        3. Move what must stay to the host (``.cpu()``) or to disk.

    False alarms:
        A container that the source empties, bounds or checks before adding (a cache) is reported
        only when it has grown over ``passes`` passes over the data, or for ``doubtful`` steps
        where the size of the data is not known; less than ``clear`` bytes per step only after
        ``small`` steps.

    Cost:
        None of its own: it uses the measurements made for MEM002.

    Reproduce:
        ``holdfast run -m holdfast.faults.tensor_leak`` names what
        ``python -m holdfast.faults.tensor_leak`` collects.
    """

    code = "MEM001"
    name = "tensor_leak"
    also_called = ("tensors pile up",)
    kinds = (ValueGrowth,)
    made_of = TENSORS
    fires = rows(8, _LIST)
    silent = rows(8, _LIST.replace(bytes=4096.0, tensor_bytes=4096.0))

    @dataclass(frozen=True, kw_only=True)
    class Options(GrowthOptions):
        """Thresholds of all leak detectors."""

    def cause(self, window: Window, measured: ValueGrowth) -> str:
        """MEM004, where an evaluation collects them."""
        return in_evaluation(window, measured)

    def what(self, measured: ValueGrowth) -> str:
        """The variable, the line and the amount."""
        where = "device" if measured.on_device else "host"
        emptied = f"; the script empties it, but not in {measured.steps:.0f} steps"
        return (
            f"{measured.path} grows by {amount(measured.bytes)} of tensors ({where}) per step"
            f"{at(measured)}{emptied if measured.shrinks else ''}"
        )

    def next_move(self, measured: ValueGrowth) -> str:
        """What to do at that line."""
        return _leak_fixes.how_to_bound(measured)

    def numbers(self, measured: ValueGrowth) -> Mapping[str, Any]:
        """How much and how fast."""
        return {**speed(measured), "on_device": measured.on_device}


class GraphLeak(LeakDetector[ValueGrowth | GraphChain]):
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
        ``holdfast run -m holdfast.faults.graph_leak`` names the line that makes
        ``python -m holdfast.faults.graph_leak`` leak.
    """

    code = "MEM002"
    name = "graph_leak"
    also_called = ("graph kept",)
    kinds = (ValueGrowth, GraphChain)
    made_of = GRAPHS
    fires = rows(8, _LIST.replace(graphs=1))
    silent = rows(8, _LIST)

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

    def lasts(self, measured: ValueGrowth | GraphChain) -> bool:
        """Whether the script keeps graphs that nothing will use."""
        options = self.options
        if isinstance(measured, GraphChain):
            held, used = measured.held, measured.in_use
            return held is None or used is None or held >= options.share * used
        if measured.single:
            return grows_for_ever(measured, options)
        enough = options.consumed if measured.shrinks else 0
        return unbounded(measured, options) and measured.steps >= enough

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
        return _leak_fixes.how_to_detach(measured)

    def headline(self, measured: ValueGrowth | GraphChain) -> str:
        """The variable that keeps them."""
        return f"{measured.path or 'a variable'} keeps the graphs of past steps alive"

    def diff(self, measured: ValueGrowth | GraphChain) -> str:
        """The same line, storing the value without its graph, where no backward pass needs it."""
        if measured.feeds:
            return ""
        return replaced(measured.to_dict(), _leak_fixes.detached_line(measured, measured.code))

    def numbers(self, measured: ValueGrowth | GraphChain) -> Mapping[str, Any]:
        """How far back, and what the process says."""
        slope = {"heap_slope": measured.heap_slope}
        if isinstance(measured, ValueGrowth):
            return {"rate": measured.rate, **slope}
        held = {} if measured.held is None else {"held": float(measured.held)}
        return {"age": float(measured.age), **slope, **held}


class StateNotDetached(LeakDetector[GraphChain]):
    """State carried from step to step is not detached: the next loss reaches back through it.

    What it detects:
        The loss passed to ``backward`` reaches graph nodes of past steps through a tensor that was
        carried over: a hidden state, a memory, a running baseline. Also where that ends the run
        with an error: "Trying to backward through the graph a second time", or weights that
        were "modified by an inplace operation".

    Why it matters:
        Backward reaches further back with every step: each step is slower and larger than the one
        before, until memory is full. ``retain_graph=True`` hides the error and keeps the growth.

    Evidence:
        ``key``: line and variable; ``variable``: the tensor that carries the graph; ``age``: steps
        the loss reaches back; ``depth``: past steps whose graphs it goes through; ``grown_for``,
        ``bytes_per_step`` and ``heap_slope``; ``headline``, ``source``, the statement and the lines
        around it, and ``diff``, the fix where it is one line that runs in every step, and no
        gradient of the state itself is asked for.

    Usual causes:
        - ``out, hidden = rnn(x, hidden)`` in a loop without ``hidden = hidden.detach()``.
        - ``self.memory = new`` in a module's ``forward``.
        - A baseline or target made of earlier predictions: ``b = 0.9 * b + 0.1 * value``.
        - ``retain_graph=True`` written to silence the error.

    What to do:
        1. Detach what is carried at the end (or the beginning) of each step:
           ``hidden = hidden.detach()``, for a tuple ``tuple(h.detach() for h in hidden)``.
        2. Remove ``retain_graph=True``; the error then shows where a detach is still missing.

    False alarms:
        Truncated backpropagation with overlapping windows reaches back on purpose, but not
        further and further: a state is reported when it still reaches back to the same step some
        steps later, that step lies six steps back, and each step in between has added its graph.
        A tensor made once, before the training (``torch.tensor(...).float()`` with a gradient, as
        in physics-informed networks), gets no longer and is none.

    Cost:
        None of its own: it uses the measurements made for MEM002.

    Reproduce:
        ``holdfast run -m holdfast.faults.state_not_detached`` names the state that makes
        ``python -m holdfast.faults.state_not_detached`` slower with each step.
    """

    code = "MEM003"
    name = "state_not_detached"
    kinds = (GraphChain,)
    made_of = STATES
    fires = rows(8, _STATE)
    silent = rows(8, _STATE.replace(fed=False))

    def what(self, measured: GraphChain) -> str:
        """The state, and how far back the loss reaches."""
        age = measured.age
        return f"{measured.path} carries its graph into the next step: it reaches back {age} " + (
            f"step{'s' * (age != 1)}{at(measured)}"
        )

    def next_move(self, measured: GraphChain) -> str:
        """Where to detach."""
        return _leak_fixes.how_to_cut(measured)

    def headline(self, measured: GraphChain) -> str:
        """The state that carries it."""
        return f"{measured.path or 'a state'} carries its graph into the next step"

    def diff(self, measured: GraphChain) -> str:
        """The line that cuts the graph, behind the one that makes the state in every step."""
        if measured.differentiated or not measured.again:
            return ""  # its own gradient is asked for, or the line does not run once in each step
        return followed_by(measured.to_dict(), _leak_fixes.detaching(measured))

    def numbers(self, measured: GraphChain) -> Mapping[str, Any]:
        """How far back, and the growth of the process."""
        depth = {} if measured.depth is None else {"depth": float(measured.depth)}
        return {"age": float(measured.age), **depth, "heap_slope": measured.heap_slope}


class ObjectLeak(LeakDetector[ValueGrowth]):
    """Host memory leak: Python objects or numpy arrays are collected and never freed.

    What it detects:
        A container of plain objects, an array or a string that keeps its content and grows
        every step, by at least ``least`` bytes. Tensors are MEM001.

    Why it matters:
        The host runs out of memory after hours, the system kills the process silently, and
        loader workers that are forked later copy all of it.

    Evidence:
        ``key``: line and variable; ``variable``, ``bytes_per_step`` (estimated from the newest
        items), ``rate`` (items per step), ``size`` (items now), ``grown_for`` (steps),
        ``heap_slope``: bytes that the process grew with each step; ``headline`` and ``source``, the
        statement and the lines around it.

    Usual causes:
        - ``tolist()`` or ``numpy()`` of whole batches kept for a log.
        - Records of every step in a list of dictionaries, images for a summary.
        - ``np.append`` or ``+=`` on a string in the loop, which also copies all of it each time.

    What to do:
        1. Write it to a file right away, or keep a summary.
        2. Bound it: ``collections.deque(maxlen=...)``, or clear it when it has been used.

    False alarms:
        Logs of numbers stay far below ``least``; below ``warn`` it is information. A container
        that the source empties or checks before adding (a cache) is reported only when it has
        grown over ``passes`` passes over the data, or for ``doubtful`` steps; one that grows only
        up to a length, never.

    Cost:
        None of its own: it uses the measurements made for MEM002.

    Reproduce:
        ``holdfast run -m holdfast.faults.object_leak`` names what
        ``python -m holdfast.faults.object_leak`` collects.
    """

    code = "MEM005"
    name = "object_leak"
    also_called = ("host growth",)
    other_severities = ((Severity.INFO, "where it grows slowly"),)
    kinds = (ValueGrowth,)
    made_of = OBJECTS
    fires = rows(8, _LIST.replace(tensor_bytes=0.0))
    silent = rows(8, _LIST.replace(tensor_bytes=0.0, other_bytes=0.0, bytes=4096.0))

    @dataclass(frozen=True, kw_only=True)
    class Options(GrowthOptions):
        """Thresholds of all leak detectors.

        Attributes:
            warn: bytes per step above which it is more than information: a gigabyte in 32,000
                steps (a guess).
        """

        warn: float = 32 * 1024.0

    def weight(self, measured: ValueGrowth) -> Severity:
        """Slow growth matters in very long runs only."""
        return self.severity if measured.bytes >= self.options.warn else Severity.INFO

    def what(self, measured: ValueGrowth) -> str:
        """The name, the line and the amount."""
        return (
            f"{measured.path} grows by {amount(measured.bytes)} of host memory per step"
            f"{at(measured)}"
        )

    def next_move(self, measured: ValueGrowth) -> str:
        """What to do at that line."""
        return _leak_fixes.how_to_write(measured)

    def numbers(self, measured: ValueGrowth) -> Mapping[str, Any]:
        """How much and how fast."""
        return speed(measured)
