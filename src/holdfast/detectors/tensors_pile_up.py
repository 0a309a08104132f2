"""MEM001: memory leak; tensors without a graph pile up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..records.memory import ValueGrowth
from ._growth import TENSORS, GrowthDetector, in_evaluation, speed
from ._memory import amount, at, code_of
from ._window import Window


class TensorsPileUp(GrowthDetector):
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
        ``holdfast run -m holdfast.faults.tensors_pile_up`` names what
        ``python -m holdfast.faults.tensors_pile_up`` collects.
    """

    code = "MEM001"
    name = "tensors_pile_up"
    made_of = TENSORS

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
        return bound_advice(measured)

    def headline(self, measured: ValueGrowth) -> str:
        """What grows."""
        return f"{measured.path or 'a container'} grows with every step"

    def numbers(self, measured: ValueGrowth) -> Mapping[str, Any]:
        """How much and how fast."""
        return {**speed(measured), "on_device": measured.on_device}


# By kind: how the last few are kept, and how it becomes empty.
_ENDS = {
    "list": ("keep the last few (collections.deque(maxlen=...))", "call {path}.clear() in between"),
    "deque": ("give it a maxlen", "call {path}.clear() in between"),
    "dict": ("drop the oldest keys", "call {path}.clear() in between"),
    "tensor": ("keep its last part ({path}[-n:])", "start it anew in between"),
    "_lru_cache_wrapper": ("give the cache a maxsize", "call its cache_clear() in between"),
    "": ("keep the last few", "empty it in between"),
}


def bound_advice(grown: ValueGrowth) -> str:
    """The change for a container that only grows."""
    path, line, one = grown.path or "the container", code_of(grown), grown.single
    many = f" ({grown.size:.0f} {'values' if one else 'items'} now)"
    where = f" at `{line}`" if line else ""
    few, end = _ENDS.get("tensor" if one else grown.type, _ENDS[""])
    few, end = few.format(path=path), end.format(path=path)
    return f"bound {path}{many}: {few}, reduce them to numbers{where}, or {end}"
