"""MEM001: memory leak; tensors without a graph pile up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..types import Event
from ._events import number
from ._growth import TENSORS, GrowthDetector, in_evaluation
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

    def cause(self, window: Window, event: Event) -> str:
        """MEM004, where an evaluation collects them."""
        return in_evaluation(window, event)

    def what(self, event: Event) -> str:
        """The variable, the line and the amount."""
        data, where = event.data, "device" if event.data.get("on_device") else "host"
        emptied = f"; the script empties it, but not in {number(event, 'steps'):.0f} steps"
        return (
            f"{data.get('path', 'a container')} grows by {amount(number(event, 'bytes'))} of "
            f"tensors ({where}) per step{at(data)}{emptied if data.get('shrinks') else ''}"
        )

    def next_move(self, event: Event) -> str:
        """What to do at that line."""
        return bound_advice(event)

    def headline(self, event: Event) -> str:
        """What grows."""
        return f"{event.data.get('path') or 'a container'} grows with every step"

    def numbers(self, event: Event) -> Mapping[str, Any]:
        """How much and how fast."""
        names = ("rate", "size", "heap_slope")
        return {
            **{name: number(event, name) for name in names},
            "on_device": bool(event.data.get("on_device")),
        }


# By kind: how the last few are kept, and how it becomes empty.
_ENDS = {
    "list": ("keep the last few (collections.deque(maxlen=...))", "call {path}.clear() in between"),
    "deque": ("give it a maxlen", "call {path}.clear() in between"),
    "dict": ("drop the oldest keys", "call {path}.clear() in between"),
    "tensor": ("keep its last part ({path}[-n:])", "start it anew in between"),
    "_lru_cache_wrapper": ("give the cache a maxsize", "call its cache_clear() in between"),
    "": ("keep the last few", "empty it in between"),
}


def bound_advice(event: Event) -> str:
    """The change for a container that only grows."""
    data = event.data
    path, line = str(data.get("path") or "the container"), code_of(data)
    size, one = number(event, "size"), bool(data.get("single"))
    many = f" ({size:.0f} {'values' if one else 'items'} now)" if size == size else ""
    where = f" at `{line}`" if line else ""
    few, end = _ENDS.get("tensor" if one else str(data.get("type")), _ENDS[""])
    few, end = few.format(path=path), end.format(path=path)
    return f"bound {path}{many}: {few}, reduce them to numbers{where}, or {end}"
