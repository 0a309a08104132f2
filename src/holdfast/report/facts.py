"""Facts about a finding besides its cause, the same in every form of report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from ..detectors import ALL, document
from ..types import Finding
from . import words
from .cause import ShownCause
from .joined_findings import FindingGroup
from .measured import measured_of
from .memory_curves import MemoryGrowth
from .restarts import RESTART, restarted

# More findings of one code are counted, not listed: forty layers are still one fault.
PER_CODE = 3
# Detectors of plugins have codes of their own; a page has an end.
AT_MOST = 24
# Modules listed with their parts.
_MODULES = 5

_ACTIONS = {
    "skip_update": "skipped the step: weights, optimizer state and buffers are unchanged",
    "clip": "clipped the gradients to the threshold of this run",
    "stop": "stopped the run, the last good state saved",
    "replace_sample": "put another sample in its place, so that the run went on",
    "rollback": "rolled back to an earlier state and skipped the data in between",
}


@dataclass(frozen=True, kw_only=True)
class FindingFacts:
    """Label and text of each fact, and the command that explains more."""

    rows: tuple[tuple[str, str], ...]
    explain: str
    numbers: tuple[tuple[str, str], ...] = ()
    """What was measured: label and value."""
    about: str = ""
    """What a finding of this code is, in a sentence."""


def groups_to_show(
    finding_groups: tuple[FindingGroup, ...],
) -> tuple[list[FindingGroup], dict[str, int]]:
    """The findings to show, and how many of each code are not shown."""
    chosen: list[FindingGroup] = []
    seen: dict[str, int] = {}
    left_out: dict[str, int] = {}
    for group in finding_groups:
        code = group.finding.code
        seen[code] = seen.get(code, 0) + 1
        if seen[code] <= PER_CODE and len(chosen) < AT_MOST:
            chosen.append(group)
        else:
            left_out[code] = left_out.get(code, 0) + 1
    return chosen, left_out


def facts_of(
    group: FindingGroup,
    cause: ShownCause | None,
    *,
    several_ranks: bool,
    growth: MemoryGrowth | None = None,
) -> FindingFacts:
    """Steps, samples, actions taken, ranks and confidence.

    Args:
        group: the finding and what follows from it.
        cause: of the finding, where it is known.
        several_ranks: whether the run had more than one.
        growth: memory that was added since something was found to grow.
    """
    finding = group.finding
    rows = {
        "sample": _sample(finding, cause),
        "file": _sample_file(finding),
        "holdfast": _done(finding),
        "steps": words.occurrences(finding).partition(";")[0] or f"step {finding.step}",
        "ranks": words.ranks(group.ranks) if several_ranks else "",
        "also": consequences(group),
        "modules": modules_of(finding),
        "how sure": _sure(finding, cause),
    }
    return FindingFacts(
        rows=tuple((label, text) for label, text in rows.items() if text),
        explain=f"holdfast explain {finding.code}",
        numbers=tuple(measured_of(finding, growth)),
        about=_about(finding),
    )


def _about(finding: Finding) -> str:
    known = next((detector for detector in ALL if detector.code == finding.code), None)
    return "" if known is None else f"{document(known).summary} ".replace("``", "")


def consequences(group: FindingGroup) -> str:
    """What the finding caused on other ranks; empty when nothing."""
    if not group.consequences:
        return ""
    codes = ", ".join(sorted({code for code, _ in group.consequences}))
    where = words.ranks([rank for _, rank in group.consequences])
    return f"{codes} on {where}{', spread by all-reduce' if codes == 'NUM002' else ''}"


def modules_of(finding: Finding) -> str:
    """Memory that the largest modules need, part by part."""
    modules: Any = finding.evidence.get("modules")
    if not isinstance(modules, Mapping):
        return ""
    lines: list[str] = []
    for name, parts in list(cast("Mapping[str, object]", modules).items())[:_MODULES]:
        if isinstance(parts, Mapping):
            sizes = cast("Mapping[str, object]", parts).items()
            each = [f"{p} {words.size(s)}" for p, s in sizes if isinstance(s, float) and s > 0]
            lines.append(f"{name}: {', '.join(each)}")
    return "; ".join(lines)


def _sample(finding: Finding, cause: ShownCause | None) -> str:
    if cause is not None and cause.data:
        return cause.data
    samples = finding.evidence.get("samples")
    if not isinstance(samples, list) or not samples:
        return ""
    names = [str(sample) for sample in samples[:8]]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return f"dataset ind{'ices' if len(names) > 1 else 'ex'} {', '.join(names)}"


def _sample_file(finding: Finding) -> str:
    file = finding.evidence.get("sample_file")
    return file if isinstance(file, str) else ""


def _done(finding: Finding) -> str:
    if finding.action == RESTART:
        return restarted(finding)
    done = _ACTIONS.get(finding.action, finding.action.replace("_", " "))
    count, skipped = (int(finding.evidence.get(name, 0)) for name in ("count", "skipped"))
    if not done:
        return "nothing: it was detected, not prevented"
    if count > 1 and finding.action == "skip_update":
        many = (
            "each time"
            if skipped == count
            else f"{words.number(skipped)} of {words.number(count)} times"
        )
        return f"{done} ({many})"
    return done


def _sure(finding: Finding, cause: ShownCause | None) -> str:
    sure = words.percent(finding.confidence) if finding.confidence < 0.995 else "certain"
    reported = finding.evidence.get("sure")
    sure = reported if isinstance(reported, str) and reported else sure
    found = cause.evidence if cause is not None else ""
    return f"{sure}; {found}" if found else sure
