"""MEM001: tensors without a graph pile up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..types import Event
from ._growth import TENSORS, GrowthDetector, in_evaluation
from ._memory import amount, at, code_of
from ._told import number
from ._window import Window


class TensorsPileUp(GrowthDetector):
    """Tensors are collected step after step and never let go, on the device or on the host.

    What it detects:
        A container that keeps what it has and gets more tensors with the steps, or one tensor
        that is joined to its former self (``bank = torch.cat([bank, x])``), at least ``least``
        bytes per step. Tensors that hang on a graph are MEM002.

    Why it matters:
        The run dies of it sooner or later, mostly far from where it began, and a device is full
        long before the host would be.

    Evidence:
        ``key``: line and variable; ``variable``, ``bytes_per_step`` (estimated from the newest
        items), ``rate`` (items per step), ``size`` (items now), ``grown_for`` (steps),
        ``heap_slope``: bytes that the process grew with each step, ``on_device``;
        ``consequence``: MEM004, where an evaluation made them.

    Usual causes:
        - Predictions, features or inputs collected for a metric or a plot, and never cleared.
        - A cache or a replay memory without a bound, or whose keys never come again.
        - A hook that stores gradients or activations.

    What to do:
        1. Keep what is needed of them: a number, a sum, the last few
           (``collections.deque(maxlen=...)``).
        2. Clear the container when its epoch is over.
        3. What must stay goes to the host (``.cpu()``) or to disk.

    False alarms:
        What the source empties, bounds or asks before it grows (caches) is reported only when it
        has grown over ``passes`` passes over the data, or for ``doubtful`` steps where its size is
        not known; less than ``clear`` bytes per step only after ``small`` steps. Growth that levels
        off is none.

    Cost:
        None of its own: it judges what the looks for MEM002 have found on the way.

    Reproduce:
        ``holdfast run -m holdfast.faults.tensors_pile_up`` names what
        ``python -m holdfast.faults.tensors_pile_up`` collects.
    """

    code = "MEM001"
    name = "tensors_pile_up"
    made_of = TENSORS

    def cause(self, window: Window, event: Event) -> str:
        """An evaluation, where it is one that collects."""
        return in_evaluation(window, event)

    def what(self, event: Event) -> str:
        """The name, the line and the amount."""
        where = "device" if event.data.get("on_device") else "host"
        return (
            f"{event.data.get('path', 'a container')} grows by {amount(number(event, 'bytes'))} of "
            f"tensors ({where}) with each step{at(event.data)}"
        )

    def next_move(self, event: Event) -> str:
        """What to do at that line."""
        return bound_advice(event)

    def numbers(self, event: Event) -> Mapping[str, Any]:
        """How much and how fast."""
        names = ("rate", "size", "heap_slope")
        return {
            **{name: number(event, name) for name in names},
            "on_device": bool(event.data.get("on_device")),
        }


def bound_advice(event: Event) -> str:
    """The change for a container that only grows."""
    path, line = str(event.data.get("path") or "the container"), code_of(event.data)
    size = number(event, "size")
    many = f" ({size:.0f} items now)" if size == size else ""
    where = f" at `{line}`" if line else ""
    return (
        f"bound {path}{many}: keep the last ones (collections.deque(maxlen=...)), reduce them to "
        f"numbers{where}, or call {path}.clear() when the epoch is over"
    )
