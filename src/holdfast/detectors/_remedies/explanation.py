"""Find the remedy of a cause, and add both to the findings that they explain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from ...types import Event, Finding
from . import division, domain, masking, overflow, words
from .cause import Cause
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
        """Parse a ``cause`` event; None when it holds nothing usable."""
        given = cast("object", event.data)  # as read from a file, whatever the type says
        if not isinstance(given, Mapping) or not given or type(event.step) is not int:
            return None
        data = dict(cast("Mapping[str, Any]", given))
        opt = data.get("opt")
        return cls(
            opt=opt if isinstance(opt, int) else 0,
            step=event.step,
            cause=Cause.read(data),
            data={"step": event.step, **data},
            remedy=remedy(data),
        )

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
        mine, its = self.cause, other.cause
        same = (mine.file, mine.line, mine.name) == (its.file, its.line, its.name)
        return same and mine.phase == its.phase

    def added_to(self, finding: Finding, samples: Sequence[object] = ()) -> Finding:
        """The finding with location, advice and evidence of its cause, and all of its samples."""
        told: dict[str, Any] = {"cause": self.data, "headline": self.remedy.headline}
        if samples:
            told["samples"] = list(samples)
        if self.remedy.diff:
            told["diff"] = self.remedy.diff
        return replace(
            finding,
            file=self.cause.file or finding.file,
            line=self.cause.line if self.cause.file else finding.line,
            message=finding.message + self._apart(finding),
            advice=self.remedy.text,
            evidence={**finding.evidence, **told},
        )

    def _apart(self, finding: Finding) -> str:
        """What is said of a bad batch where the fault arose apart from it."""
        known, given = self.cause, self.cause.inputs
        finite = known.op and known.phase == "forward" and not any(stat.bad for stat in given)
        said = "; the cause is another"
        mine = finding.code == "NUM005" and finite and said not in finding.message
        return said if given and mine else ""


def remedy(cause: Mapping[str, Any]) -> Remedy:
    """Return the remedy for a recorded cause; never raises, however damaged the record."""
    known = Cause.read(cause)
    if known.phase == "parameter":
        return words.parameter(known)
    if known.phase == "input":
        return words.batch(known)
    if known.phase == "carried":
        return words.carried(known)
    if not known.op:
        return words.unknown(known)
    if known.backward and not places(known) and places(known, "norm"):
        # The derivative of a norm is a division, and the derivative of that is another.
        known = replace(known, name="norm")
    for rule in (
        words.already_bad,
        _of_operation,
        words.in_words,
        words.already_infinite,
        overflow.overflow,
    ):
        found = rule(known)
        if found:
            return found
    return words.unknown(known)


def _of_operation(cause: Cause) -> Remedy | None:
    rule = _RULES.get(cause.name)
    return rule(cause) if rule else None
