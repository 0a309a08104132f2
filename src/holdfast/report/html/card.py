"""Card of a run in a notebook: verdict, findings with their lines and samples, the report.

Notebooks strip style sheets and scripts from what they do not trust, and each has its own light
and dark theme. So styles stand in the elements, text and ground are those of the notebook, and the
colours that are set can be read on white and on black.
"""

from __future__ import annotations

from .. import words
from ..cause import ShownCause, cause_of
from ..facts import facts_of, groups_to_show
from ..joined_findings import FindingGroup
from ..summary import RunSummary
from ..verdict import BAD, INFO, WARN, verdict_of
from .elements import Child, Html, tag

# White on these, and these as a line on white or black: a contrast of 4.5 and 3 at least.
_COLOURS = {INFO: "#4a6fa5", WARN: "#a3620a", BAD: "#c0392b"}
_TONES = {"info": INFO, "warning": WARN, "error": BAD}
_FINDINGS = 4
_MESSAGE = 600

_BADGE = "color:#fff;border-radius:4px;padding:1px 7px;font-size:85%;font-weight:600;background:"
_CODE = "font-family:ui-monospace,monospace;font-size:90%;white-space:pre-wrap;margin:4px 0"
_CHANGES = {"+": "#2e7d4f", "-": "#c0392b"}


def card(summary: RunSummary | None) -> str:
    """The card; None for a run that has not begun."""
    if summary is None:
        return _frame(INFO, tag("div", _badge("No steps yet", INFO)))
    verdict = verdict_of(summary)
    shown, _ = groups_to_show(summary.finding_groups)
    more = len(summary.finding_groups) - len(shown[:_FINDINGS])
    loss = words.loss_change(summary.first_loss, summary.last_loss)
    facts = [
        words.plural(summary.steps, "step"),
        summary.skipped_steps,
        loss if len(summary.losses) == 1 else summary.loss_change,
        words.plural(len(summary.finding_groups), "finding"),
    ]
    return _frame(
        verdict.tone,
        tag(
            "div",
            _badge(verdict.word, verdict.tone),
            " ",
            tag("strong", str(summary.meta.get("script") or summary.path.name)),
            f" · {' · '.join(filter(None, facts))}",
        ),
        tag("div", verdict.sentence, style="margin-top:4px"),
        [_finding(group) for group in shown[:_FINDINGS]],
        tag("div", f"{words.plural(more, 'more finding')} in the report") if more > 0 else None,
        _pointer(summary),
    )


def _frame(tone: str, *children: Child) -> str:
    style = (
        "font-family:system-ui,sans-serif;font-size:14px;line-height:1.45;max-width:60em;"
        "color:inherit;background:transparent;border:1px solid rgba(128,128,128,.45);"
        f"border-left:4px solid {_COLOURS[tone]};border-radius:6px;padding:10px 14px;margin:6px 0"
    )
    return tag("div", *children, style=style, role="region", aria_label="holdfast run")


def _badge(text: str, tone: str) -> Html:
    return tag("span", text, style=f"{_BADGE}{_COLOURS[tone]}")


def _finding(group: FindingGroup) -> Html:
    finding, cause = group.finding, cause_of(group.finding)
    sample = dict(facts_of(group, cause, several_ranks=False).rows).get("sample", "")
    return tag(
        "div",
        _badge(finding.code, _TONES[finding.severity.word]),
        " ",
        words.clip(words.capital(finding.message), _MESSAGE),
        tag("div", _where(cause), style=_CODE) if cause and _where(cause) else None,
        tag("div", f"Sample: {sample}") if sample else None,
        tag("div", tag("strong", "Fix: "), words.clip(words.capital(finding.advice), _MESSAGE)),
        _diff(cause) if cause and cause.diff else None,
        style="margin-top:8px;padding-top:8px;border-top:1px solid rgba(128,128,128,.3)",
    )


def _where(cause: ShownCause) -> str:
    return " at ".join(filter(None, [cause.headline, cause.where]))


def _diff(cause: ShownCause) -> Html:
    lines: list[Child] = []
    for row in cause.diff.splitlines():
        if not row.startswith("@@"):
            colour = _CHANGES.get(row[:1])
            border = f"border-left:3px solid {colour or 'transparent'};padding-left:6px"
            lines.append(tag("div", row, style=border))
    return tag("div", lines, style=_CODE)


def _pointer(summary: RunSummary) -> Html:
    where = summary.page or f"holdfast report {summary.path}"
    return tag("div", "Report: ", tag("code", where), style="margin-top:8px;opacity:.85")
