"""Restarts of a run, from ``run.json``: how many, why, and which batches are skipped since."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

from ..types import Finding, place_words
from . import words

RESTARTS = "restarts"
"""The key of ``run.json``: a list, one entry for each restart."""
RESTART = "restart"
"""The action on a finding about what ended a process, where another one was started."""
_ENDS = ("RUN001", "RUN004", "MEM008")
"""Findings about what ended a process: each of its processes may have made one."""
_SAMPLES = 8


def restarts_of(meta: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """One mapping for each restart; empty for a run that had none."""
    given = meta.get(RESTARTS)
    rows = cast("list[Any]", given) if isinstance(given, list) else []
    return [cast("Mapping[str, Any]", row) for row in rows if isinstance(row, dict)]


def last_restart(meta: Mapping[str, Any]) -> float:
    """When the newest process was started, in seconds since 1970; 0.0 for the first."""
    times = [str(row.get("time", "")) for row in restarts_of(meta)]
    try:
        return datetime.fromisoformat(times[-1]).timestamp() if times else 0.0
    except ValueError:
        return 0.0


def restart_line(meta: Mapping[str, Any]) -> str:
    """``restarted 2 times``, for the summary; empty for a run that had none."""
    rows = restarts_of(meta)
    skipped = sum(bool(row.get("skips")) for row in rows)
    also = f", {words.plural(skipped, 'batch', 'es')} skipped" if skipped else ""
    return f"restarted {words.plural(len(rows), 'time')}{also}" if rows else ""


def reasons_of(meta: Mapping[str, Any]) -> list[tuple[list[int], str]]:
    """The steps and the reason of restarts, the same reason once, with the batches skipped since.

    A batch is skipped when it has ended the run for the second time.
    """
    steps: dict[str, list[int]] = {}
    skipped: dict[str, list[str]] = {}
    for row in restarts_of(meta):
        reason = str(row.get("reason", ""))
        steps.setdefault(reason, []).append(_step(row))
        skipped.setdefault(reason, []).extend(filter(None, [_named(row.get("skips"))]))
    return [(at, f"{reason}{_skips(skipped[reason])}") for reason, at in steps.items()]


def ends_once(
    found: Iterable[tuple[str, Finding]], meta: Mapping[str, Any]
) -> list[tuple[str, Finding]]:
    """Findings of a run that was started again: what ended several processes is one of them.

    Args:
        found: pairs of lane and finding.
        meta: of the run.
    """
    rows = restarts_of(meta)
    if not rows:
        return list(found)
    same: dict[tuple[Any, ...], list[tuple[str, Finding]]] = {}
    for lane, finding in found:
        end = finding.code in _ENDS
        key = _cause(finding) if end else (lane, *finding.key)
        same.setdefault((finding.rank, *key), []).append((lane, finding))
    return [(some[0][0], _one([finding for _, finding in some], rows)) for some in same.values()]


def restarted(finding: Finding) -> str:
    """What was done about what ended a process: ``started the script again 2 times; …``."""
    evidence = finding.evidence
    given: Any = evidence.get("skipped_batches")
    batches = [_named(one) for one in cast("list[Any]", given or [])]
    again = f"started the script again {words.plural(int(evidence.get('restarts', 0)), 'time')}"
    return f"{again}{_skips(batches)}"


def _one(same: list[Finding], rows: Sequence[Mapping[str, Any]]) -> Finding:
    """Several ends with one cause as one finding, with the restarts after them."""
    first = same[0]
    if first.code not in _ENDS:
        return first
    place = f" at {place_words(first.file, first.line)}" if first.file else ""
    what = str(first.evidence.get("error") or "it hung").partition(":")[0]
    after = [row for row in rows if str(row.get("reason", "")).startswith(what)]
    after = [row for row in after if str(row.get("reason", "")).endswith(place)]
    if not after:
        return first
    steps = sorted({finding.step for finding in same})
    samples = dict.fromkeys(
        sample for finding in same for sample in _list(finding.evidence.get("samples"))
    )
    often = f", {len(same)} times up to step {steps[-1]}" if len(same) > 1 else ""
    evidence = {
        **first.evidence,
        "count": len(steps),
        "steps": steps,
        "samples": list(samples),
        "ends": len(same),
        "restarts": len(after),
        "skipped_batches": [_list(row.get("skips")) for row in after if row.get("skips")],
    }
    return replace(
        first,
        message=f"{first.message}{often}",
        last_step=steps[-1],
        action=RESTART,
        evidence=evidence,
    )


def _cause(finding: Finding) -> tuple[Any, ...]:
    """What two ends have in common that have one cause; the numbers in their words may differ."""
    said = str(finding.evidence.get("headline") or finding.evidence.get("error") or "")
    kind = str(finding.evidence.get("error") or "").partition(":")[0]
    return finding.code, finding.file, finding.line, kind, re.sub(r"\d+", "", said)


def _step(row: Mapping[str, Any]) -> int:
    step = row.get("step")
    return step if isinstance(step, int) and step >= 0 else 0


def _skips(batches: Sequence[str]) -> str:
    if not batches:
        return ""
    count = f"; {words.plural(len(batches), 'batch', 'es')} skipped"
    return f"{count}, {'each ' * (len(batches) > 1)}after the second time: {'; '.join(batches)}"


def _named(given: object) -> str:
    """``samples 3, 4, 5``; empty where there are none."""
    samples = _list(given)
    few = ", ".join(map(str, samples[:_SAMPLES])) + (", …" if len(samples) > _SAMPLES else "")
    return f"sample{'s' * (len(samples) > 1)} {few}" if samples else ""


def _list(given: object) -> list[Any]:
    return cast("list[Any]", given) if isinstance(given, list) else []
