"""A fault and all its findings so far, merged into one."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, cast

from ..types import Finding, Severity
from ._remedies import Explanation
from ._window import HISTORY

# Entries that a finding lists one by one; beyond that it only counts.
REMEMBERED = 16
# Causes that are kept for the samples they name.
_CAUSES = 512


@dataclass(frozen=True, kw_only=True)
class Options:
    """When skipping steps no longer keeps a run alive; the same for every cause of skips."""

    steps: int = 200
    """Steps that are looked at together. A choice: an epoch of a small set or some minutes; shorter
    storms end by themselves (benchmarks/results/drills_cpu_2026-11-15.md)."""
    share: float = 0.5
    """Share of them that is skipped for one cause. A choice: the others still train, at half the
    pace at most."""


OPTIONS = Options()


@dataclass(slots=True)
class Case:
    """All findings of one fault so far: the first ones, and sums over all of them."""

    findings: list[Finding] = field(default_factory=list[Finding])
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY))
    """Steps it was last found on: a cause may become known long after its step."""
    explanation: Explanation | None = None
    others: list[Explanation] = field(default_factory=list[Explanation])
    """All that name samples, the best one included."""
    count: int = 0
    skipped: int = 0
    first_step: int = 0
    last_step: int = 0
    severity: Severity = Severity.INFO
    skips: deque[int] = field(
        default_factory=lambda: deque(maxlen=int(OPTIONS.steps * OPTIONS.share) + 1)
    )
    """The last steps that were skipped, as many as are too many."""
    in_vain: bool = False
    """Nearly everything was skipped because of it, for a while at least."""

    def add(self, finding: Finding) -> None:
        """One more of them."""
        if len(self.findings) < REMEMBERED:
            self.findings.append(finding)
        self.recent.append(finding.step)
        self.first_step = min(self.first_step, finding.step) if self.count else finding.step
        self.last_step = max(self.last_step, finding.step, finding.last_step)
        self.severity = max(self.severity, finding.severity)
        self.count += int(finding.evidence.get("count", 1))
        self.skipped += int(finding.evidence.get("skipped", 0))
        if finding.evidence.get("skipped"):
            self.skips.append(finding.step)
            full = len(self.skips) == self.skips.maxlen
            self.in_vain |= full and finding.step - self.skips[0] < OPTIONS.steps

    def renew(self, finding: Finding) -> None:
        """The last finding once more, with what has become known of its step since."""
        self.findings[-1:] = [finding]
        self.severity = max(one.severity for one in self.findings)

    def explain(self, explanation: Explanation) -> bool:
        """Accept a cause of one of the findings, unless a better one is known."""
        seen = explanation.step in self.recent or any(
            explanation.step == finding.step for finding in self.findings
        )
        if not seen or not explanation.explains(self.findings[0]):
            return False
        better = explanation.beats(self.explanation)
        if better:
            self.explanation = explanation
        before = self._samples()
        if explanation.samples and len(self.others) < _CAUSES:
            self.others.append(explanation)
        return better or self._samples() != before

    def _samples(self) -> list[Any]:
        """The samples that share the cause, in the order of their steps."""
        best = self.explanation
        same = [other for other in self.others if best is not None and other.is_of(best)]
        named = [(other.step, sample) for other in same for sample in other.samples]
        return list(dict.fromkeys(s for _, s in sorted(named, key=lambda n: (n[0], str(n[1])))))[
            :REMEMBERED
        ]

    def merged(self) -> Finding:
        """Merge into one finding: the message of the first, the numbers of all.

        Lists in the evidence (steps, samples) are joined, up to ``REMEMBERED`` entries. Where a
        cause is known, its location and remedy replace the detector's advice.
        """
        first = self.findings[0]
        evidence: dict[str, Any] = {**first.evidence, "count": self.count, "skipped": self.skipped}
        for name, value in first.evidence.items():
            if isinstance(value, list):
                evidence[name] = self._joined(name)
        merged = replace(
            first,
            step=self.first_step,
            last_step=self.last_step,
            severity=self.severity,
            evidence=evidence,
        )
        if self.in_vain:
            merged = _nothing_learnt(merged, self.skipped, self.last_step + 1)
        if self.explanation is None:
            return merged
        # Those that were found in the batches themselves are the better ones.
        return self.explanation.added_to(merged, evidence.get("samples") or self._samples())

    def _joined(self, name: str) -> list[Any]:
        joined: list[Any] = []
        for finding in self.findings:
            value: object = finding.evidence.get(name)
            if isinstance(value, list):
                joined += [v for v in cast("list[Any]", value) if v not in joined]
        return joined[:REMEMBERED]


def _nothing_learnt(finding: Finding, skipped: int, steps: int) -> Finding:
    """The finding of a run that skips nearly everything, which is not alive."""
    what = finding.message.partition(": ")[2] or finding.message
    reported = f"{skipped:,} of {steps:,} steps skipped, nothing is being learnt"
    return replace(
        finding,
        severity=Severity.ERROR,
        message=f"step {finding.step}: {reported}: {what}",
        evidence={**finding.evidence, "in_vain": True, "of": steps},
    )
