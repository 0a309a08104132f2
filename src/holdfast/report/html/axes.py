"""Axes: where a value lies between 0 and 1, and which values are written beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from .. import words
from .curves import Values

# Below this ratio of largest to smallest a linear axis shows more; above it, only the peak.
_LOG_FROM = 50.0
_TICKS = 5


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What a number is divided by before it is written, and what is written behind it."""

    size: float = 1.0
    suffix: str = ""

    def label(self, value: float) -> str:
        """A value with its unit."""
        return f"{words.figure(value / self.size)}{words.NBSP if self.suffix else ''}{self.suffix}"


PLAIN = Unit()
_TIMES = (Unit(size=1e-6, suffix="µs"), Unit(size=1e-3, suffix="ms"), Unit(suffix="s"))
_NAMES = ("B", "KiB", "MiB", "GiB")
_SIZES = tuple(Unit(size=1024.0**power, suffix=name) for power, name in enumerate(_NAMES))


def unit_for(kind: str, largest: float) -> Unit:
    """The unit in which the largest value is at least one; kinds are ``seconds`` and ``bytes``."""
    units = {"seconds": _TIMES, "bytes": _SIZES}.get(kind, (PLAIN,))
    fitting = [unit for unit in units if unit.size <= largest]
    return fitting[-1] if fitting else units[0]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A range of values, linear or logarithmic; ``low`` and ``high`` are values, not logarithms."""

    low: float
    high: float
    log: bool = False
    unit: Unit = PLAIN

    def place(self, values: Values) -> Values:
        """Between 0 (low) and 1 (high); what a logarithm cannot show lies at the lower edge."""
        if self.log:
            values = np.log10(np.maximum(values, self.low))
            low, high = math.log10(self.low), math.log10(self.high)
        else:
            low, high = self.low, self.high
        return (values - low) / (high - low)

    def ticks(self) -> list[tuple[float, str]]:
        """Places and labels, few enough to be read."""
        values = _decades(self.low, self.high) if self.log else []
        values = [value for value in values if self.low <= value <= self.high]
        if len(values) < 2:
            values = [value for value in self._steps() if self.low <= value <= self.high]
        places = self.place(np.array(values, dtype=np.float64)).tolist()
        return [(p, self.unit.label(value)) for p, value in zip(places, values, strict=True)]

    def _steps(self) -> list[float]:
        size = self.unit.size
        step = _nice((self.high - self.low) / size / _TICKS) * size
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [k * step for k in range(first, last + 1)]


def value_axis(
    values: Iterable[Values], *, kind: str = "", log: bool | None = None, zero: bool = False
) -> Axis | None:
    """An axis that holds all finite values; None when there are none.

    Args:
        values: the curves.
        kind: ``seconds`` or ``bytes``, or nothing.
        log: logarithmic; by default where it shows more.
        zero: begin at zero, for amounts that are compared by their length.
    """
    lows = [part[np.isfinite(part)] for part in values]
    known = np.concatenate([*lows, np.zeros(0)])
    if not known.size:
        return None
    low, high = float(known.min()), float(known.max())
    positive = known[known > 0]
    if log is None:
        log = low >= 0 and positive.size > 0 and high / float(positive.min()) >= _LOG_FROM
    unit = unit_for(kind, high)
    if log and positive.size:
        low, room = float(positive.min()), (high / float(positive.min())) ** 0.04
        # Without room above and below, a curve that is flat would have no axis.
        room = room if room > 1.001 else 1.5
        return Axis(low=low / room, high=high * room, log=True, unit=unit)
    if zero:
        return Axis(low=min(0.0, low), high=high * 1.05 or 1.0, unit=unit)
    room = (high - low) * 0.05 or abs(high) * 0.1 or 1.0
    return Axis(low=low - room, high=high + room, unit=unit)


def step_axis(first: float, last: float) -> Axis:
    """The axis of steps."""
    return Axis(low=first, high=last) if last > first else Axis(low=first - 0.5, high=first + 0.5)


def step_ticks(axis: Axis) -> list[tuple[float, str]]:
    """Whole steps only, in thousands where all of them are."""
    step = max(1.0, _nice((axis.high - axis.low) / _TICKS))
    first, last = math.ceil(axis.low / step), math.floor(axis.high / step)
    values = [k * step for k in range(first, last + 1)]
    places = axis.place(np.array(values)).tolist()
    size, suffix = next(
        ((s, x) for s, x in ((1e6, "M"), (1e3, "k")) if step >= s / 2 and axis.high >= 10 * s),
        (1.0, ""),
    )
    labels = [f"{value / size:g}{suffix}" if value else "0" for value in values]
    if not suffix:
        labels = [words.number(int(value)) for value in values]
    return list(zip(places, labels, strict=True))


def _nice(step: float) -> float:
    """The next of 1, 2, 5, 10, ... above a step."""
    if not step > 0 or not math.isfinite(step):
        return 1.0
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * 0.999)


def _decades(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1.0, 2.0, 5.0) if last - first <= 2 else (1.0,)
    every = max(1, math.ceil((last - first) / _TICKS))
    return [f * 10.0**p for p in range(first, last + 1) if p % every == 0 for f in factors]
