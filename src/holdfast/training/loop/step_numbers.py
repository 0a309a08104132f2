"""A step in numbers, and the numbers as a person reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard


@dataclass(frozen=True)
class Tick:
    """Where a run is and how it does.

    Args:
        step: optimizer steps done.
        steps: how many there will be, if that is known.
        epoch: the epoch it is in, from 1.
        epochs: how many there will be, if that is known.
        loss: of the last steps.
        rate: samples per second.
        wait: share of the time spent waiting for data, from 0 to 1.
        memory: bytes in use on the device, or by the process.
        skipped: steps skipped so far.
        lr: learning rate.
        norm: of the gradient.
    """

    step: int
    steps: int | None = None
    epoch: int = 0
    epochs: int | None = None
    loss: float | None = None
    rate: float | None = None
    wait: float | None = None
    memory: float | None = None
    skipped: int = 0
    lr: float | None = None
    norm: float | None = None


@dataclass(frozen=True)
class LinePiece:
    """A piece of a line; where there is no room, those of the highest rank go first."""

    rank: int
    text: str
    style: str = ""


def fields(tick: Tick, left: float | None = None, *, share: bool = True) -> list[LinePiece]:
    """What a line says about a step, in the order it is read.

    Args:
        tick: the step.
        left: seconds until the end, if that is known.
        share: include how much is done; a bar shows that already.
    """
    done = f" ({percent(tick.step / tick.steps)})" if share and tick.steps else ""
    found = [
        LinePiece(0, f"step {of(tick.step, tick.steps)}{done}"),
        LinePiece(6, f"epoch {of(tick.epoch, tick.epochs)}" if tick.epoch else ""),
        LinePiece(1, f"loss {figure(tick.loss)}", "bold"),
        LinePiece(2, f"skipped {tick.skipped}" if tick.skipped else "", "yellow"),
        LinePiece(3, pace(tick.rate) if _known(tick.rate) else ""),
        LinePiece(4, f"wait {percent(tick.wait)}" if _known(tick.wait) else ""),
        LinePiece(5, size(tick.memory) if _known(tick.memory) else ""),
        LinePiece(8, f"lr {tick.lr:.3g}" if _known(tick.lr) else ""),
        LinePiece(9, f"norm {figure(tick.norm)}" if _known(tick.norm) else ""),
        LinePiece(7, f"{span(left)} left" if _known(left) else ""),
    ]
    return [field for field in found if field.text]


def fitted(given: Sequence[LinePiece], width: int, gap: str = "  ") -> list[LinePiece]:
    """As many of these as fit into the width; the most important one always stays."""
    kept = list(given)
    while len(kept) > 1 and len(gap.join(field.text for field in kept)) > width:
        kept.remove(max(kept, key=lambda field: field.rank))
    return kept


def of(count: int, total: int | None) -> str:
    """A count, and the total where that is known: ``3/10``."""
    return f"{count}" if total is None else f"{count}/{total}"


def figure(value: float | None) -> str:
    """A measured number with four digits; ``-`` where there is none.

    >>> figure(2.31), figure(0.012345), figure(71234.5), figure(1.2e-8), figure(None)
    ('2.310', '0.01235', '71234', '1.200e-08', '-')
    """
    if value is None or math.isnan(value):
        return "-"
    if value and math.isfinite(value) and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.3e}"
    # With `#` the zeros at the end stay, so that the next number stands where this one stood.
    return f"{value:.0f}" if abs(value) >= 9999.5 else f"{value:#.4g}"


def pace(value: float) -> str:
    """Samples per second.

    >>> pace(0.25), pace(12.34), pace(853.2), pace(1234), pace(2.5e6)
    ('0.25/s', '12.3/s', '853/s', '1.2k/s', '2.5M/s')
    """
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= unit * 0.9995:
            return f"{value / unit:.1f}{name}/s"
    return f"{value:.{0 if value >= 99.95 else 1 if value >= 9.995 else 2}f}/s"


def size(count: float) -> str:
    """Bytes.

    >>> size(3.14e9), size(512e6), size(2000)
    ('3.1 GB', '512 MB', '2 kB')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit * 0.9995:
            return f"{count / unit:.{1 if name == 'GB' else 0}f} {name}"
    return f"{count:.0f} B"


def percent(share: float) -> str:
    """A share: ``12 %``; never 100 before it is all."""
    return f"{min(round(share * 100), 99) if share < 1 else round(share * 100)} %"


def span(seconds: float) -> str:
    """A time span.

    >>> span(42), span(192), span(7500), span(200000)
    ('42 s', '3:12 min', '2:05 h', '2.3 days')
    """
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d} h" if hours < 48 else f"{seconds / 86400:.1f} days"


def _known(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)
