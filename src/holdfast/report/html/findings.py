"""A finding on the page: the line to blame, its inputs, the fix, and the action taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...types import Finding
from .. import words
from ..cause import STAT_COLUMNS, ShownCause, cause_of, title_of
from ..crash import crash_of
from ..facts import FindingFacts, facts_of
from ..joined_findings import FindingGroup
from ..memory_curves import MemoryGrowth
from .crash import crash_html
from .elements import (
    Child,
    Html,
    join,
    prose,
    tag,
)

_MESSAGE = 1200


@dataclass(frozen=True, kw_only=True)
class PageFacts:
    """What the page knows besides a finding."""

    several_ranks: bool = False
    growth: MemoryGrowth | None = None
    """Memory that was added since something was found to grow."""
    plots: Mapping[str, str] = field(default_factory=dict[str, str])
    """Plot to look at for findings of a family (MEM, TPT): its id."""


ALONE = PageFacts()
"""A finding without anything around it."""


def finding_html(group: FindingGroup, number: int | str, known: PageFacts = ALONE) -> Html:
    """One finding as an article."""
    finding, cause = group.finding, cause_of(group.finding)
    facts = facts_of(group, cause, several_ranks=known.several_ranks, growth=known.growth)
    crash = crash_of(finding)
    return tag(
        "article",
        _head(finding, cause, f"finding-{number}"),
        None if crash else _seen(finding),  # its traceback below has the message
        _excerpt(cause) if cause else None,
        _stats(cause) if cause and cause.stats else None,
        _numbers(facts),
        _cure(finding, cause),
        crash_html(crash) if crash else None,
        _facts(facts, known.plots.get(finding.code[:3], "")),
        [_folded(other, f"{number}-{i}", known) for i, other in enumerate(group.follows, 1)],
        class_=f"finding {finding.severity.word}",
        aria_labelledby=f"finding-{number}",
    )


def _folded(group: FindingGroup, number: str, known: PageFacts) -> Html:
    """What follows from a finding: a line that opens."""
    finding = group.finding
    place = f" at {cause.near}" if (cause := cause_of(finding)) and cause.near else ""
    title = f"{words.capital(finding.name.replace('_', ' '))}{place}"
    return tag(
        "details",
        tag("summary", "Follows from it: ", tag("span", finding.code, class_="code"), " ", title),
        finding_html(group, number, known),
        class_="follows",
    )


def _head(finding: Finding, cause: ShownCause | None, key: str) -> Html:
    title = title_of(finding, cause)
    if crash_of(finding) is not None:  # its cause stands above all, in the verdict
        title = str(finding.evidence.get("error") or title)
    at = None
    if cause and cause.where:
        at = tag("p", tag("code", cause.where), class_="at")
    badge = tag("span", finding.severity.word, class_="badge")
    code = tag("span", finding.code, class_="code")
    place = tag("p", cause.place, class_="place") if cause and cause.place else None
    return join(tag("h3", badge, " ", code, " ", title, id=key), at, place)


def _seen(finding: Finding) -> Html:
    return tag("p", prose(words.clip(words.capital(finding.message), _MESSAGE)), class_="seen")


def _excerpt(cause: ShownCause) -> Html | None:
    lines = cause.excerpt or tuple(zip(cause.guilty, cause.code.splitlines(), strict=False))
    if not lines:
        return None
    width = len(str(max(number for number, _ in lines)))
    shown: list[Child] = []
    for number, text in lines:
        guilty = number in cause.guilty
        mark = "▶" if guilty else " "
        label = tag("span", f"{mark} {number:>{width}}  ", class_="n")
        # The line end is inside: outside of a block it would be a line of its own.
        shown.append(tag("mark" if guilty else "span", label, text, "\n"))
    return tag("pre", tag("code", shown), class_="excerpt", tabindex="0")


def _stats(cause: ShownCause) -> Html:
    head = tag("tr", [tag("th", column, scope="col") for column in STAT_COLUMNS])
    body = [
        tag("tr", tag("th", stat.name, scope="row"), list(map(_cell, STAT_COLUMNS, stat.cells))[1:])
        for stat in cause.stats
    ]
    caption = tag("caption", "Inputs and output of the operation")
    return tag(
        "div", tag("table", caption, tag("thead", head), tag("tbody", body)),
        class_="scroll stats", tabindex="0",
    )  # fmt: skip


def _cell(column: str, text: str) -> Html:
    bad = column in ("NaN", "inf") and text != "0"
    return tag("td", tag("strong", text) if bad else text, class_="num hot" if bad else "num")


def _cure(finding: Finding, cause: ShownCause | None) -> Html:
    text = tag(
        "p",
        tag("strong", "Fix: "),
        prose(words.clip(words.capital(finding.advice), _MESSAGE)),
        class_="fix",
    )
    if cause is None or not cause.diff:
        return text
    lines: list[Child] = []
    for line in cause.diff.splitlines():
        kind = {"+": "ins", "-": "del"}.get(line[:1], "span")
        lines.append(tag(kind, line, "\n", class_="hunk" if line.startswith("@@") else None))
    return join(text, tag("pre", tag("code", lines), class_="diff copied", tabindex="0"))


def _numbers(facts: FindingFacts) -> Html | None:
    """What was measured, for findings about memory and time."""
    shown = [tag("div", tag("dt", label), tag("dd", value)) for label, value in facts.numbers]
    return tag("dl", shown, class_="figures") if shown else None


def _facts(facts: FindingFacts, plot: str) -> Html:
    rows: list[Child] = []
    for label, text in facts.rows:
        rows.append(tag("dt", label))
        rows.append(tag("dd", text))
    if plot:
        link = tag("a", "the plot of the run", href=f"#{plot}")
        rows += [tag("dt", "see also"), tag("dd", link)]
    rows += [tag("dt", "more"), tag("dd", facts.about, tag("code", facts.explain, class_="copied"))]
    return tag("dl", rows)
