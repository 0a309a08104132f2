"""Numbers and spans as a person writes them; shared by every form of report.

Spaces within a number or before its unit are no-break spaces, so that wrapping does not tear
them apart; ``layout`` turns them into ordinary ones in the end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..types import Finding

NBSP = "\N{NO-BREAK SPACE}"


def plural(count: int, noun: str, ending: str = "s") -> str:
    """A count with its noun: ``1 step``, ``1 200 steps``, ``no steps``."""
    return f"{number(count) if count else 'no'} {noun}{'' if count == 1 else ending}"


def number(value: int) -> str:
    """A whole number in groups of three: ``12 345``."""
    return f"{value:,}".replace(",", NBSP)


def duration(seconds: float) -> str:
    """A time span in its two largest units: ``850 ms``, ``3 min 12 s``, ``2 h 05 min``."""
    if math.isnan(seconds):
        return "unknown"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f}{NBSP}µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g}{NBSP}ms"
    if seconds < 60:
        return f"{seconds:.3g}{NBSP}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}{NBSP}min{NBSP}{rest:02d}{NBSP}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}{NBSP}h{NBSP}{minutes:02d}{NBSP}min"


def size(count: float) -> str:
    """Bytes in binary units: ``1.5 GiB``."""
    units = ("B", "KiB", "MiB", "GiB")
    power = min(len(units) - 1, int(math.log2(count) // 10)) if count >= 1 else 0
    return f"{count / 1024**power:.4g}{NBSP}{units[power]}"


def percent(share: float) -> str:
    """A share: ``0.6 %``, ``12 %``."""
    return f"{share * 100:.{1 if share < 0.0995 else 0}f}{NBSP}%"


def ranks(numbers: Sequence[int]) -> str:
    """Ranks with neighbours joined: ``rank 3``, ``ranks 0-2, 5``."""
    spans: list[list[int]] = []
    for rank in sorted(set(numbers)):
        if spans and rank == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], rank]
        else:
            spans.append([rank])
    text = ", ".join("-".join(map(str, span)) for span in spans)
    return f"rank{'s' * (len(set(numbers)) > 1)} {text}"


def loss_change(first: float, last: float) -> str:
    """How the loss moved; empty when it was never seen."""
    if math.isnan(first) or math.isnan(last):
        return ""
    return f"loss {first:.4g} → {last:.4g}"


def occurrences(finding: Finding) -> str:
    """How often and where a finding was seen, and what was done; empty for a single time."""
    count = int(finding.evidence.get("count", 1))
    if count <= 1:
        return ""
    steps = [str(step) for step in finding.evidence.get("steps", [])]
    if count <= len(steps) and count <= 8:
        where = f"steps {', '.join(steps)}"
    else:
        where = f"{number(count)} steps between {finding.step} and {finding.last_step}"
    skipped = int(finding.evidence.get("skipped", 0))
    if skipped:
        return f"{where}; {'all' if skipped == count else number(skipped)} were skipped"
    return f"{where}; none was skipped" if " NOT skipped: " in finding.message else where
