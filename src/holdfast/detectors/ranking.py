"""Order findings by severity and cause, and say which is a consequence of which.

>>> from holdfast.types import Finding, Severity
>>> at = dict(severity=Severity.WARNING, message="", advice="", file="train.py", line=7)
>>> slow = Finding(code="TPT004", name="slow_down", step=40, **at)
>>> stall = Finding(code="TPT005", name="stall", step=12, **at)
>>> [finding.code for finding in ranked([stall, slow])], explained([stall, slow])[id(stall)].code
(['TPT004', 'TPT005'], 'TPT004')
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from ..types import Finding, Severity
from . import ALL, Detector

# Steps after bad data within which a spike is its consequence: as long as a rollback may take to
# see its weights damaged (``spike.patience`` and the baseline's window). A guess.
_SOON = 32
# Bytes per step below which growth is no fault of its own.
_LITTLE = 64 << 10


def ranked(
    findings: Iterable[Finding], order: Sequence[type[Detector] | Detector] = ALL
) -> list[Finding]:
    """Sort findings: worst first, then cause before consequence, then by step.

    A run that skips nearly everything is worse than all else, and a cause as bad as the worst of
    its consequences.
    The order of detectors is the order of causes; those of one family that know which ``share``
    of the time is lost are ordered by that, and one may come before another one (``precedes``). A
    finding that another one explains, or that says itself that it is a consequence, comes after
    all of the same severity.
    """
    findings = list(findings)
    data = {detector.soon_after for detector in order} - {""}
    position = {detector.code: i for i, detector in enumerate(order)}
    families: dict[str, int] = {}
    for code, i in position.items():
        families.setdefault(code[:3], i)
    known = explained(findings, order)
    worst: dict[int, Severity] = {}
    for finding in findings:
        above = known.get(id(finding))
        if above is not None and above.code in data:
            worst[id(above)] = max(worst.get(id(above), above.severity), finding.severity)

    def place(finding: Finding) -> tuple[Any, ...]:
        follows = bool(finding.evidence.get("consequence")) or id(finding) in known
        alive = not finding.evidence.get("in_vain")
        severity = max(finding.severity, worst.get(id(finding), finding.severity))
        cause = position.get(finding.code, len(position))
        share = finding.evidence.get("share")
        weight = float(share) if isinstance(share, int | float) else 0.0
        if weight > 0:
            cause = families.get(finding.code[:3], cause)
        return alive, -severity, follows, cause, -weight, finding.step, finding.key

    worst_first = sorted(findings, key=place)
    for detector in order:
        if detector.precedes:
            _let_precede(worst_first, detector.code, detector.precedes)
    return worst_first


def explained(
    findings: Sequence[Finding], order: Sequence[type[Detector] | Detector] = ALL
) -> dict[int, Finding]:
    """Map the ``id`` of each consequence to the finding that explains it.

    It says so (``consequence``), its detector does (``follows``), or another one of its family
    explains its line: as its own, or as the one on which the time is ``spent``. Code that registers
    another hook every step slows steps down and leaks a little memory (``explains_growth``).
    """
    by_what = {detector.code: detector.follows for detector in order}
    with_growth = {(detector.code, detector.explains_growth) for detector in order}
    before = {detector.code: detector.soon_after for detector in order}
    roots = {detector.code for detector in order if detector.explains_line}
    causes = [f for f in findings if f.severity > Severity.INFO]
    lines = {
        (f.code[:3], f.file, line, f.rank): f
        for f in causes
        if f.code in roots and f.line
        for line in (f.line, f.evidence.get("spent"))
    }
    growing = {
        (f.file, f.line, f.rank): f
        for f in causes
        if f.line and (f.code, str(f.evidence.get("what"))) in with_growth
    }
    found: dict[int, Finding] = {}
    for finding in findings:
        says = str(finding.evidence.get("consequence") or "").split()
        says += by_what.get(finding.code, {}).get(str(finding.evidence.get("what")), "").split()
        same = [f for f in causes if f.rank == finding.rank and f is not finding]
        above = [f for code in says for f in same if f.code == code]
        above += [f for f in same if f.code == before.get(finding.code) and _soon(f, finding)]
        line = lines.get((finding.code[:3], finding.file, finding.line, finding.rank))
        above += [line] if line and line.code != finding.code else []
        if _grows_little(finding) and (at := (finding.file, finding.line, finding.rank)) in growing:
            above.append(growing[at])
        if above and found.get(id(above[0])) is not finding:
            found[id(finding)] = above[0]
    return found


def _soon(cause: Finding, finding: Finding) -> bool:
    """Whether a finding began some steps after a cause, at most."""
    began = finding.evidence.get("spike_start", finding.step)
    start = int(began) if isinstance(began, int | float) else finding.step
    reported: object = cause.evidence.get("steps")
    noted = cast("list[Any]", reported) if isinstance(reported, list) else []
    steps = [step for step in noted if isinstance(step, int)]
    return any(start - _SOON <= step <= finding.step for step in [*steps, cause.last_step])


def _grows_little(finding: Finding) -> bool:
    """Whether a finding is a small memory leak."""
    rates = [finding.evidence.get(name) for name in ("bytes_per_step", "heap_slope")]
    reported = [float(rate) for rate in rates if isinstance(rate, int | float)]
    return bool(reported) and max(reported) < _LITTLE


def _let_precede(findings: list[Finding], code: str, other: str) -> None:
    """Move findings of one code right behind the first of another of the same severity."""
    first = next((f for f in findings if f.code == code), None)
    late = [f for f in findings if first and f.code == other and f.severity == first.severity]
    if first is None or not late or findings.index(late[0]) > findings.index(first):
        return
    for finding in late:
        findings.remove(finding)
    at = findings.index(first) + 1
    findings[at:at] = late
