"""A run as text: the verdict first, then the findings, then the facts behind them."""

from __future__ import annotations

import math
from functools import partial

from ..types import Finding, Severity
from . import words
from .layout import WIDTH, Line, Span, line, paragraph
from .sightings import Sighting
from .summary import RunSummary

# Findings of one code beyond these are counted, not told: forty layers are still one fault.
_PER_CODE = 3
_BAR = 24

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold cyan"}
_OUTCOMES = {"finished": "bold green", "unfinished": "bold yellow", "interrupted": "bold yellow"}


def report_lines(summary: RunSummary, width: int = WIDTH) -> list[Line]:
    """The whole report of a run."""
    width = max(40, width)
    blocks = [
        _verdict(summary, width),
        _findings(summary, width),
        _notes("Not covered", summary.not_covered, width),
        _notes("Trouble inside holdfast (training went on)", summary.errors, width),
        _run(summary, width),
        _time(summary),
        _lanes(summary, width),
    ]
    lines: list[Line] = []
    for block in filter(None, blocks):
        lines += [*block, line()]
    return lines[:-1]


def end_lines(summary: RunSummary, width: int = WIDTH) -> list[Line]:
    """What ``holdfast run`` prints when the script has ended: verdict, findings, where to look."""
    width = max(40, width)
    style = _OUTCOMES.get(summary.outcome, "bold red")
    facts = [words.plural(len(summary.sightings), "finding")]
    facts += [words.plural(summary.skipped, "step") + " skipped"] if summary.skipped else []
    facts += (
        [change] if (change := words.loss_change(summary.first_loss, summary.last_loss)) else []
    )
    after = f"{',' * (',' in summary.ending.line)} after {words.plural(summary.steps, 'step')}"
    text = f"{summary.ending.line}{after}. {_sentence(facts)}{_cost(summary)}"
    lines = paragraph(text, label="holdfast:", width=width, label_style=style)
    for sighting in _told(summary.sightings)[0]:
        finding = sighting.finding
        block = partial(paragraph, indent=2, column=8, width=width)
        lines += block(finding.message, label=finding.code, label_style=_STYLES[finding.severity])
        often = words.occurrences(finding)
        lines += block(often) if often else []
        lines += block(finding.advice, style="dim")
    for note in summary.not_covered:
        lines += paragraph(note, label="not covered", indent=2, width=width, label_style="yellow")
    lines.append(line("  ", Span("report ", "dim"), f" holdfast report {summary.path}"))
    if summary.sightings:
        code = summary.sightings[0].finding.code
        lines.append(line("  ", Span("explain", "dim"), f" holdfast explain {code}"))
    return lines


def finding_lines(sighting: Sighting, width: int = WIDTH, *, several: bool = False) -> list[Line]:
    """One finding as a block: what, how often, the next move."""
    finding = sighting.finding
    style = _STYLES[finding.severity]
    title = finding.name.replace("_", " ")
    lines = [
        line("  ", Span(finding.code, style), "  ", Span(title, "bold"), "  ",
             Span(_strength(finding), "dim")),
    ]  # fmt: skip
    block = partial(paragraph, indent=4, column=8, width=width, label_style="dim")
    lines += block(finding.message, label="seen")
    often = words.occurrences(finding)
    lines += block(often, label="on") if often else []
    if several:
        lines += block(words.ranks(sighting.ranks), label="by")
    if sighting.echoes:
        codes = ", ".join(sorted({code for code, _ in sighting.echoes}))
        where = words.ranks([rank for _, rank in sighting.echoes])
        lines += block(f"{codes} on {where}: all-reduce carried it there", label="also")
    if finding.file:
        lines += block(f"{finding.file}:{finding.line}", label="at")
    lines += block(finding.advice, label="next")
    return lines


def _verdict(summary: RunSummary, width: int) -> list[Line]:
    style = _OUTCOMES.get(summary.outcome, "bold red")
    lines = [line(Span(str(summary.path), "dim"))]
    how = "" if summary.outcome == "finished" else f"{summary.ending.line}, "
    lines += paragraph(
        f"{how}after {words.plural(summary.steps, 'step')} in {words.duration(summary.seconds)}",
        label=summary.outcome.upper(), column=10, width=width, label_style=style,
    )  # fmt: skip
    facts = [
        words.plural(len(summary.sightings), "finding"),
        f"{words.plural(summary.skipped, 'step')} skipped",
        words.loss_change(summary.first_loss, summary.last_loss),
    ]
    text = _sentence([fact for fact in facts if fact]) + _cost(summary)
    return lines + paragraph(text, column=10, width=width)


def _findings(summary: RunSummary, width: int) -> list[Line]:
    told, left_out = _told(summary.sightings)
    if not told:
        return []
    several = len({lane.rank for lane in summary.lanes}) > 1
    lines = [line(Span("Findings", "bold"))]
    for sighting in told:
        lines += [line(), *finding_lines(sighting, width, several=several)]
    for code, count in left_out.items():
        lines += [line(), *paragraph(
            f"{words.plural(count, 'more finding')} of this kind; "
            f"holdfast report --format json lists all of them",
            label=code, indent=2, column=8, width=width, label_style="dim",
        )]  # fmt: skip
    codes = sorted({sighting.finding.code for sighting in told})
    lines += [line(), line("  ", Span("more about it:", "dim"), f" holdfast explain {codes[0]}")]
    return lines


def _told(sightings: tuple[Sighting, ...]) -> tuple[list[Sighting], dict[str, int]]:
    """The findings to tell, and how many of each code are left out."""
    told: list[Sighting] = []
    seen: dict[str, int] = {}
    for sighting in sightings:
        code = sighting.finding.code
        seen[code] = seen.get(code, 0) + 1
        if seen[code] <= _PER_CODE:
            told.append(sighting)
    return told, {code: n - _PER_CODE for code, n in seen.items() if n > _PER_CODE}


def _notes(title: str, notes: tuple[str, ...], width: int) -> list[Line]:
    if not notes:
        return []
    lines = [line(Span(title, "bold"))]
    for note in notes:
        lines += paragraph(note, label="-", indent=2, width=width)
    return lines


def _run(summary: RunSummary, width: int) -> list[Line]:
    facts = dict(summary.facts)
    made = [f"{name} {facts[name]}" for name in ("holdfast", "python", "torch") if name in facts]
    rows = {
        "command": facts.get("command", ""),
        "started": facts.get("started", ""),
        "with": ", ".join([*made, *([facts["device"]] if "device" in facts else [])]),
        "ranks": facts.get("world", "") if facts.get("world", "1") != "1" else "",
        "guard": "; ".join(summary.changes),
    }
    names = {"mem_allocated": "GPU allocated", "mem_reserved": "GPU reserved", "rss": "host"}
    peaks = {n: max((p.peak_bytes.get(n, 0.0) for p in summary.lanes), default=0.0) for n in names}
    at_most = [f"{names[name]} {words.size(peak)}" for name, peak in peaks.items() if peak > 0]
    rows["memory"] = f"at most {', '.join(at_most)}" if at_most else ""
    count, total = summary.files
    rows["files"] = f"{words.plural(count, 'file')}, {words.size(total)}, in {summary.path}"
    if summary.dropped:
        rows["lost"] = f"{words.number(summary.dropped)} records: the ring was full"
    lines = [line(Span("Run", "bold"))]
    for label, text in rows.items():
        if text:
            lines += paragraph(
                text, label=label, indent=2, column=9, width=width, label_style="dim"
            )
    return lines


def _time(summary: RunSummary) -> list[Line]:
    """Where a step's time goes, of the first lane: ranks wait for each other anyway."""
    phases = summary.lanes[0].phases if summary.lanes else dict[str, float]()
    total = sum(phases.values())
    if total <= 0:
        return []
    heading = f"Time per step, {words.duration(total)} on average"
    lines = [line(Span(heading, "bold"))]
    for name, seconds in phases.items():
        share = seconds / total
        bar = "█" * round(share * _BAR) or "·"
        time = words.duration(seconds).rjust(9)
        lines.append(line(
            f"  {name.replace('_', ' '):<10}{time}{words.percent(share).rjust(8)}  ",
            Span(bar, "cyan"),
        ))  # fmt: skip
    return lines


def _lanes(summary: RunSummary, width: int) -> list[Line]:
    """Only where there is more than one, or where one is incomplete."""
    notes: list[str] = []
    for lane in summary.lanes:
        parts = [
            f"{words.plural(lane.steps, 'step')}, {words.plural(lane.skipped, 'step')} skipped"
        ]
        if lane.steps > lane.rows > 0:
            parts.append(f"{words.number(lane.rows)} rows kept of a long run")
        if not lane.ended:
            parts.append("no last words")
        if lane.corrupt:
            parts.append(f"{words.plural(lane.corrupt, 'line')} unreadable")
        if len(parts) > 1 or len(summary.lanes) > 1:
            notes.append(f"{lane.lane}: {', '.join(parts)}")
    return _notes("Processes", tuple(notes), width)


def _sentence(facts: list[str]) -> str:
    text = ", ".join(facts)
    return f"{text[:1].upper()}{text[1:]}."


def _cost(summary: RunSummary) -> str:
    if math.isnan(summary.guard_cost):
        return ""
    return f" Guard cost {words.percent(summary.guard_cost)} (estimate)."


def _strength(finding: Finding) -> str:
    sure = "" if finding.confidence >= 0.95 else f", {finding.confidence:.0%} sure"
    return f"{finding.severity.word}{sure}"
