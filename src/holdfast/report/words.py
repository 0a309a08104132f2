"""Format numbers, durations and sizes; shared by every form of report.

Spaces within a number or before its unit are no-break spaces, so that wrapping does not tear
them apart; ``layout`` turns them into ordinary ones in the end.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import cast

from ..types import Finding, Severity

NBSP = "\N{NO-BREAK SPACE}"
LONGEST = 2_000
"""Characters of a text for people; ours are shorter, an exception can hold a whole file."""
# Notes of one kind: of what was done, what failed, what cannot be read.
_NOTES = 40
# A finding of this confidence is reported without a word of doubt.
_CERTAIN = 0.95


def plural(count: int, noun: str, ending: str = "s") -> str:
    """A count with its noun: ``1 step``, ``1,200 steps``, ``no steps``."""
    return f"{number(count) if count else 'no'} {noun}{'' if count == 1 else ending}"


def number(value: int) -> str:
    """A whole number in groups of three: ``12,345``."""
    return f"{value:,}"


def duration(seconds: float) -> str:
    """A time span in its two largest units: ``850 ms``, ``3 min 12 s``, ``2 h 05 min``."""
    if not math.isfinite(seconds):
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
    if not math.isfinite(count):
        return "unknown"
    units = ("B", "KiB", "MiB", "GiB", "TiB")
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


def bad_losses(count: int, mean: float) -> str:
    """How many losses a script could not average, and what the others are on average."""
    if not count:
        return ""
    without = f", mean without {'it' if count == 1 else 'them'} {figure(mean)}"
    return f"{plural(count, 'loss', 'es')} not finite{'' if math.isnan(mean) else without}"


def loss_change(first: float, last: float) -> str:
    """How the loss moved; empty when it was never seen."""
    if math.isnan(first) or math.isnan(last):
        return ""
    return f"loss {first:.4g} → {last:.4g}"


def loss_lost(first: float, last: float, finite: float, step: int) -> str:
    """How the loss of a run moved that ended with one that is not finite.

    >>> loss_lost(5.6, math.nan, 0.05, 198)
    'loss 5.6 → NaN (last finite: 0.05 at step 198)'
    """
    end = figure(last)
    if math.isnan(first):
        return f"loss {end} from the first step on"
    return f"loss {first:.4g} → {end} (last finite: {finite:.4g} at step {step})"


def strength(finding: Finding) -> str:
    """How bad a finding is, and how sure: ``warning``, ``info, 60 % sure``."""
    return ", ".join(filter(None, [finding.severity.word, _sure(finding)]))


def doubt(finding: Finding) -> str:
    """The same behind a message: `` (info, 60 % sure)``; empty of a fault that is certain."""
    reported = "" if finding.severity > Severity.INFO else finding.severity.word
    reported = ", ".join(filter(None, [reported, _sure(finding)]))
    return f" ({reported})" if reported else ""


def _sure(finding: Finding) -> str:
    measured = finding.evidence.get("sure")
    if isinstance(measured, str) and measured:
        return measured.partition(":")[0]
    return "" if finding.confidence >= _CERTAIN else f"{finding.confidence * 100:.0f}{NBSP}% sure"


def occurrences(finding: Finding) -> str:
    """How often and where a finding was seen, and what was done; empty for a single time."""
    count = int(finding.evidence.get("count", 1))
    if count <= 1:
        return ""
    seen = finding.evidence.get("steps")
    steps = [str(step) for step in cast(list[object], seen)] if isinstance(seen, list) else []
    if count <= len(steps) and count <= 8:
        where = f"steps {', '.join(steps)}"
    else:
        where = f"{number(count)} steps between {finding.step} and {finding.last_step}"
    skipped = int(finding.evidence.get("skipped", 0))
    if skipped:
        return f"{where}; {'all' if skipped == count else number(skipped)} were skipped"
    return f"{where}; none was skipped" if " NOT skipped: " in finding.message else where


def figure(value: float) -> str:
    """A measured number, four digits: ``0.1766``, ``71 000``, ``1.2e-08``, ``NaN``, ``-inf``."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{value}"
    if value and not 1e-3 <= abs(value) < 1e7:
        return f"{value:.3g}"
    digits = max(0, 3 - math.floor(math.log10(abs(value)))) if value else 0
    text = f"{value:,.{digits}f}" if abs(value) >= 1e4 else f"{value:.{digits}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.replace(",", NBSP)


def clip(text: str, limit: int) -> str:
    """At most so many characters; the middle gives way, since names differ at their ends."""
    if len(text) <= limit:
        return text
    head = (limit - 1) // 2
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def shortened(text: str, limit: int = LONGEST) -> str:
    """At most so many characters of a text, how many were left out, and where they stand.

    The middle gives way: a message begins with what happened and ends with where.
    """
    over = len(text) - limit
    if over <= 0:
        return text
    begin, end = text[: limit * 2 // 3], text[limit * 2 // 3 + over :]
    return f"{begin} … ({number(over)} characters more: holdfast report --format json) … {end}"


def first_notes(notes: Sequence[str]) -> list[str]:
    """Notes to show, and as the last of them how many more there are."""
    more = f"{number(len(notes) - _NOTES)} more: holdfast report --format json"
    return [*notes[:_NOTES], *([more] if len(notes) > _NOTES else [])]


def listed(names: Sequence[str]) -> str:
    """Names as one reads them aloud: ``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def capital(text: str, names: Collection[str] = ()) -> str:
    """A capital for the first word of a sentence, unless it is the name of something.

    Args:
        text: the sentence.
        names: what the script calls its own: variables, layers.

    >>> capital("log of 0"), capital("inf in a.weight"), capital("head.bias is NaN")
    ('Log of 0', 'inf in a.weight', 'head.bias is NaN')
    """
    first = text.split(" ", 1)[0]
    own = not first.isalpha() or first == "inf" or first in names
    return text if own else text[:1].upper() + text[1:]
