"""Find the remedy of a cause, and add both to the findings that they explain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...records.nonfinite import Cause
from ...types import Event, Finding
from . import division, domain, masking, overflow, words
from .cause import name_of, samples_of
from .prescription import Remedy, places

Rule = Callable[[Cause], Remedy | None]

_RULES: Mapping[str, Rule] = {
    **domain.RULES,
    **division.RULES,
    **overflow.RULES,
    **masking.RULES,
}


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Cause of the findings of one optimizer on one step, and its remedy."""

    opt: int
    step: int
    cause: Cause
    data: Mapping[str, Any]
    remedy: Remedy

    @classmethod
    def of(cls, event: Event) -> Explanation | None:
        """The explanation in a ``cause`` event; None where its data are no cause."""
        cause = Cause.of(event)
        if cause is None:
            return None
        return cls(
            # Where the script updates weights by hand, the first optimizer has the findings.
            opt=max(cause.opt, 0),
            step=event.step,
            cause=cause,
            data={"step": event.step, **event.data},
            remedy=remedy(cause),
        )

    @property
    def samples(self) -> tuple[int | str, ...]:
        """Dataset indices of the samples to blame."""
        return samples_of(self.cause)

    def beats(self, other: Explanation | None) -> bool:
        """Whether it is better than another: more certain, or as certain and from an earlier step.

        Of two that are equal in both any one will do, as long as it is always the same one: the
        order of arrival must not matter.
        """
        return other is None or self._order() < other._order()

    def _order(self) -> tuple[float, int, str]:
        return -self.remedy.confidence, self.step, repr(sorted(self.data.items()))

    def explains(self, finding: Finding) -> bool:
        """Whether a finding has the kind and the optimizer of this cause."""
        return finding.code.startswith("NUM") and finding.key[1] == self.opt

    def is_of(self, other: Explanation) -> bool:
        """Whether both have the same line, operation and phase."""
        own, its = self.cause, other.cause
        same = (own.file, own.line, name_of(own)) == (its.file, its.line, name_of(its))
        return same and own.phase == its.phase

    def added_to(self, finding: Finding, samples: Sequence[object] = ()) -> Finding:
        """The finding with location, advice and evidence of its cause, and all of its samples."""
        reported: dict[str, Any] = {"cause": self.data, "headline": self.remedy.headline}
        if samples:
            reported["samples"] = list(samples)
        if self.remedy.diff:
            reported["diff"] = self.remedy.diff
        return replace(
            finding,
            file=self.cause.file or finding.file,
            line=self.cause.line if self.cause.file else finding.line,
            message=finding.message + self._apart(finding),
            advice=self.remedy.text,
            evidence={**finding.evidence, **reported},
        )

    def _apart(self, finding: Finding) -> str:
        """What is said of a bad batch where the fault arose apart from it."""
        known, given = self.cause, self.cause.inputs
        finite = known.op and known.phase == "forward" and not any(stat.bad for stat in given)
        said = "; the cause is another"
        own = finding.code == "NUM005" and finite and said not in finding.message
        return said if given and own else ""


def remedy(cause: Cause) -> Remedy:
    """The remedy for a recorded cause."""
    if cause.phase == "parameter":
        return words.parameter(cause)
    if cause.phase == "input":
        return words.batch(cause)
    if cause.phase == "carried":
        return words.carried(cause)
    if not cause.op:
        return words.unknown(cause)
    if cause.backward and not places(cause) and places(cause, "norm"):
        # The derivative of a norm is a division, and the derivative of that is another.
        cause = cause.replace(op="norm")
    for rule in (
        words.already_bad,
        _of_operation,
        words.in_words,
        words.already_infinite,
        overflow.overflow,
    ):
        found = rule(cause)
        if found:
            return found
    return words.unknown(cause)


def _of_operation(cause: Cause) -> Remedy | None:
    rule = _RULES.get(name_of(cause))
    return rule(cause) if rule else None
