"""Text report: the verdict first, then the findings, then the facts behind them."""

from __future__ import annotations

from functools import partial

from ..types import Finding, Severity
from . import words
from .cause import ShownCause, cause_of
from .cost import cost_words
from .crash import crash_of
from .crash_end import crash_end_lines, is_reported_above
from .environment import environment_of, lane_notes
from .facts import consequences, groups_to_show, modules_of
from .joined_findings import FindingGroup
from .layout import (
    WIDTH,
    Line,
    Span,
    diff_lines,
    line,
    paragraph,
)
from .ranks import HEAD, SHOWN, rank_line
from .restarts import RESTART, restart_line, restarted
from .saved_state import saved_lines
from .summary import RunSummary

_BAR = 24
_BEFORE_BAR = 31

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold cyan"}
_OUTCOMES = {
    "finished": "bold green",
    "running": "bold cyan",
    "unfinished": "bold yellow",
    "interrupted": "bold yellow",
}


def report_lines(summary: RunSummary, width: int = WIDTH) -> list[Line]:
    """The whole report of a run."""
    width = max(40, width)
    blocks = [
        _verdict(summary, width),
        _findings(summary, width),
        _ranks(summary, width),
        _saved(summary, width),
        _notes("Damaged", summary.unreadable, width),
        _notes("What holdfast did", _actions_taken(summary), width),
        _notes("Policy", summary.policy, width),
        _notes("Not covered", summary.not_covered, width),
        _notes("Errors inside holdfast (training went on)", summary.errors, width),
        _run(summary, width),
        _time(summary, width),
        _notes("Processes", lane_notes(summary), width),
    ]
    lines: list[Line] = []
    for block in filter(None, blocks):
        lines += [*block, line()]
    return lines[:-1]


def end_lines(summary: RunSummary, width: int = WIDTH) -> list[Line]:
    """Summary that ``holdfast run`` prints at the end: verdict, findings, where to look."""
    width = max(40, width)
    style = _OUTCOMES.get(summary.outcome, "bold red")
    shown = groups_to_show(summary.finding_groups)[0]
    crash = next((group for group in shown if is_reported_above(summary, group)), None)
    if crash is not None:
        between = [
            row for group in shown if group is not crash for row in _reported(group, summary, width)
        ]
        between += _gaps(summary, width)
        return crash_end_lines(summary, crash, between, width)
    facts = [words.plural(len(summary.findings), "finding")]
    facts += [summary.skipped_steps] if summary.skipped else []
    facts += [summary.loss_change] if summary.loss_change else []
    facts += [bad] if (bad := words.bad_losses(summary.bad_losses, summary.mean_loss)) else []
    after = f"{',' * (',' in summary.ending.line)} after {summary.length}"
    did = f"; {summary.interventions}" if summary.interventions else ""
    # Of a run of seconds the start is all there is, and plain python has one, too: in the report.
    short = summary.cost is not None and not (summary.cost.tells or summary.cost.explained)
    cost = "" if short else _cost(summary)
    text = f"{summary.ending.line}{after}{did}. {_sentence(facts)}{cost}"
    lines = paragraph(text, label="holdfast:", width=width, label_style=style)
    for group in shown:
        lines += _reported(group, summary, width)
    lines += _gaps(summary, width)
    lines += saved_lines(summary.saved_state, width)
    pointers = {"report": summary.page, "text": f"holdfast report {summary.path}"}
    if not summary.page:
        pointers = {"report": pointers["text"]}
    if summary.finding_groups:
        pointers["explain"] = f"holdfast explain {summary.finding_groups[0].finding.code}"
    lines += [line("  ", Span(name.ljust(8), "dim"), where) for name, where in pointers.items()]
    return lines


def _reported(group: FindingGroup, summary: RunSummary, width: int) -> list[Line]:
    """A finding in the summary: what, how often, by whom, why, what to do."""
    finding = group.finding
    block = partial(paragraph, indent=2, column=8, width=width)
    said = f"{finding.message}{words.doubt(finding)}"
    lines = block(said, label=finding.code, label_style=_STYLES[finding.severity])
    often = words.occurrences(finding)
    lines += block(often) if often else []
    if summary.ranks and not finding.code.startswith("RNK"):
        who = [words.ranks(group.ranks), f"so also {echo}" if (echo := consequences(group)) else ""]
        lines += block("; ".join(filter(None, who)))
    cause = cause_of(finding)
    if cause is not None and (cause.headline or cause.where not in finding.message):
        data = f", {cause.data}" if cause.data else ""
        lines += block(f"cause: {_origin(cause, finding)}{data}", style="bold")
    lines += block(finding.advice, style="dim")
    lines += diff_lines(cause.diff, indent=10) if cause is not None else []
    for other in group.findings[1:]:
        lines += block(f"so also {other.code}, {other.message}", style="dim")
    return lines


def _gaps(summary: RunSummary, width: int) -> list[Line]:
    """What was not guarded, and what cannot be read."""
    lines: list[Line] = []
    for note in words.first_notes(summary.not_covered):
        lines += paragraph(note, label="not covered", indent=2, width=width, label_style="yellow")
    for note in words.first_notes(summary.unreadable):
        lines += paragraph(note, label="damaged", indent=2, width=width, label_style="red")
    return lines


def finding_lines(group: FindingGroup, width: int = WIDTH, *, several: bool = False) -> list[Line]:
    """One finding as a block: what, how often, what to do."""
    finding = group.finding
    style = _STYLES[finding.severity]
    title = finding.name.replace("_", " ")
    lines = [
        line("  ", Span(finding.code, style), "  ", Span(title, "bold"), "  ",
             Span(words.strength(finding), "dim")),
    ]  # fmt: skip
    block = partial(paragraph, indent=4, column=8, width=width, label_style="dim")
    lines += block(finding.message, label="seen")
    often = words.occurrences(finding)
    lines += block(often, label="on") if often else []
    if several:
        lines += block(words.ranks(group.ranks), label="by")
    if group.consequences:
        lines += block(consequences(group), label="also")
    cause = cause_of(finding)
    if cause is not None and (cause.headline or cause.where):
        lines += block(_origin(cause, finding), label="cause")
        lines += block(cause.data, label="data") if cause.data else []
    modules = modules_of(finding)
    lines += block(modules, label="parts") if modules else []
    crash = crash_of(finding)
    if crash is not None:
        lines += block(crash.brief, label="values") if crash.brief else []
        lines += block(crash.called_from, label="called") if crash.called_from else []
        for where, function, code in crash.frames:
            lines += block(f"{where} in {function}: {code}", label="via")
    if finding.action == RESTART:
        lines += block(restarted(finding), label="did")
    lines += block(finding.advice, label="next")
    lines += diff_lines(cause.diff, indent=12) if cause is not None else []
    for other in group.findings[1:]:
        lines += block(f"{other.code}, {other.message}", label="so also")
        lines += block(other.advice)
    return lines


def _verdict(summary: RunSummary, width: int) -> list[Line]:
    style = _OUTCOMES.get(summary.outcome, "bold red")
    lines = [line(Span(str(summary.path), "dim"))]
    reported = summary.ending.line.removeprefix("finished").removeprefix("; ")
    how = f"{reported}, " if reported else ""
    lines += paragraph(
        f"{how}after {summary.length} in {words.duration(summary.seconds)}",
        label=summary.outcome.upper(), column=10, width=width, label_style=style,
    )  # fmt: skip
    again = restart_line(summary.meta)
    facts = [
        words.plural(len(summary.findings), "finding"),
        summary.skipped_steps or ("" if again else f"{words.plural(0, 'step')} skipped"),
        again,
        words.plural(summary.rollbacks, "rollback") if summary.rollbacks else "",
        summary.loss_change,
        words.bad_losses(summary.bad_losses, summary.mean_loss),
    ]
    text = _sentence([fact for fact in facts if fact]) + _cost(summary)
    return lines + paragraph(text, column=10, width=width)


def _findings(summary: RunSummary, width: int) -> list[Line]:
    chosen, left_out = groups_to_show(summary.finding_groups)
    if not chosen:
        return []
    several = len({lane.rank for lane in summary.lanes}) > 1
    lines = [line(Span("Findings", "bold"))]
    for group in chosen:
        lines += [line(), *finding_lines(group, width, several=several)]
    for code, count in left_out.items():
        lines += [line(), *paragraph(
            f"{words.plural(count, 'more finding')} of this kind; "
            f"holdfast report --format json lists all of them",
            label=code, indent=2, column=8, width=width, label_style="dim",
        )]  # fmt: skip
    first = chosen[0].finding.code
    lines += [line(), line("  ", Span("more about it:", "dim"), f" holdfast explain {first}")]
    return lines


def _saved(summary: RunSummary, width: int) -> list[Line]:
    lines = saved_lines(summary.saved_state, width)
    return [line(Span("Saved state", "bold")), *lines] if lines else []


def _notes(title: str, notes: tuple[str, ...], width: int) -> list[Line]:
    if not notes:
        return []
    lines = [line(Span(title, "bold"))]
    for note in words.first_notes(notes):
        lines += paragraph(note, label="-", indent=2, width=width)
    return lines


def _actions_taken(summary: RunSummary) -> tuple[str, ...]:
    return tuple(
        ": ".join(filter(None, [f"{d.what}, {d.when}", d.why])) for d in summary.actions_taken
    )


def _run(summary: RunSummary, width: int) -> list[Line]:
    lines = [line(Span("Run", "bold"))]
    for label, text in environment_of(summary).items():
        lines += paragraph(text, label=label, indent=2, column=9, width=width, label_style="dim")
    return lines


def _ranks(summary: RunSummary, width: int) -> list[Line]:
    """The ranks as a table; columns that do not fit are left out, the end of each stays."""
    if not summary.ranks:
        return []
    rows = [HEAD, *(rank.cells for rank in summary.ranks[:SHOWN])]
    kept = [i for i, _ in enumerate(HEAD) if any(row[i] for row in rows[1:])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    for dropped in ("memory", "other", "optimizer", "skipped", "per step"):
        if 2 + sum(widths[i] + 2 for i in kept) <= width:
            break
        kept = [i for i in kept if HEAD[i] != dropped]
    lines = [line(Span("Ranks", "bold"))]
    for number, row in enumerate(rows):
        cells = [row[i].rjust(widths[i]) if HEAD[i] != "end" else row[i] for i in kept]
        text = "  " + "  ".join(cells).rstrip()
        odd = number and summary.ranks[number - 1].odd
        lines.append(line(Span(text, "dim" if not number else "bold yellow" if odd else "")))
    more = len(summary.ranks) - SHOWN
    lines += [line(f"  and {words.plural(more, 'more rank')}")] if more > 0 else []
    return lines + paragraph(rank_line(summary.ranks), indent=2, width=width)


def _time(summary: RunSummary, width: int) -> list[Line]:
    """Where a step's time goes, of the first lane: ranks wait for each other anyway."""
    phases = summary.lanes[0].phases if summary.lanes else dict[str, float]()
    total = sum(phases.values())
    if total <= 0:
        return []
    heading = f"Time per step, {words.duration(total)} on average without the guard"
    lines = [line(Span(heading, "bold"))]
    room = max(4, min(_BAR, width - _BEFORE_BAR))
    for name, seconds in phases.items():
        share = seconds / total
        bar = "█" * round(share * room) or "·"
        time = words.duration(seconds).rjust(9)
        lines.append(line(
            f"  {name.replace('_', ' '):<10}{time}{words.percent(share).rjust(8)}  ",
            Span(bar, "cyan"),
        ))  # fmt: skip
    if summary.lanes[0].pace:
        lines += paragraph(summary.lanes[0].pace, indent=2, width=width)
    return lines


def _origin(cause: ShownCause, finding: Finding) -> str:
    # Of memory and time the message says it all, and the place alone is left to tell.
    reported = "" if cause.headline and cause.headline in finding.message else cause.headline
    return " at ".join(filter(None, [reported, cause.where])) or cause.headline


def _sentence(facts: list[str]) -> str:
    text = ", ".join(facts)
    return f"{text[:1].upper()}{text[1:]}."


def _cost(summary: RunSummary) -> str:
    return "" if summary.cost is None else f" {cost_words(summary.cost)}"
