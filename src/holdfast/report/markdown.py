"""Markdown report, to paste into an issue: everything on the page but the plots."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from ..harmless import visible, without_commands
from . import words
from .cause import STAT_COLUMNS, ShownCause, cause_of, title_of
from .crash import VALUE_COLUMNS, CrashDetails, crash_of
from .environment import environment_of, guard_cost_words, lane_notes
from .facts import facts_of, groups_to_show
from .first_layer import stories
from .html.plots import plots_of
from .joined_findings import FindingGroup
from .ranks import HEAD, SHOWN, rank_line
from .record import RunRecord
from .restarts import restart_line
from .updates import updates_of
from .verdict import verdict_of

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$&])")
# At its beginning a text may become a list, a heading or a rule.
_START = re.compile(r"^(\d*)([-+=.)])(?=[\s=-]|$)")
# In an issue @name notifies, #1 and GH-1 link, addresses can be clicked and :100: is a picture.
# GitHub looks for these in the text as shown, so that only an invisible space between helps.
_LIVE = re.compile(
    r"@(?=\w)|#(?=\d)|(?<![^\W_])gh-(?=\d)|(?:https?|ftp|mailto|xmpp):(?=\S)|www(?=\.)"
    r"|:(?=(?:[a-z+-][\w+-]*|100|1234):)",
    re.IGNORECASE,
)
# Characters of a block of code or a traceback.
_BLOCK = 20_000


def markdown(record: RunRecord) -> str:
    """The whole report."""
    parts = (_verdict, _findings, _ranks, _saved, _layers, _curves, _rest)
    blocks = [block for part in parts for block in part(record)]
    return without_commands("\n\n".join(blocks) + "\n")


def _verdict(record: RunRecord) -> Iterator[str]:
    summary, verdict = record.summary, verdict_of(record.summary)
    script = str(summary.meta.get("script") or summary.path.name)
    yield f"# {verdict.word}: {code(script)}"
    yield text(verdict.sentence)
    again = restart_line(summary.meta)
    parts = [
        f"{summary.length} in {words.duration(summary.seconds)}",
        f"{words.plural(summary.skipped, 'step')} skipped" if summary.skipped or not again else "",
        again,
        words.plural(summary.rollbacks, "rollback") if summary.rollbacks else "",
        words.plural(len(summary.findings), "finding"),
        summary.loss_change,
        words.bad_losses(summary.bad_losses, summary.mean_loss),
        f"{record.ranks} ranks" if record.ranks > 1 else "",
    ]
    yield text(", ".join(filter(None, parts)))
    yield from (text(f"Could not be read: {damage}") for damage in summary.unreadable)


def _findings(record: RunRecord) -> Iterator[str]:
    chosen, left_out = groups_to_show(record.summary.finding_groups)
    if chosen:
        yield "## Findings"
    for group in chosen:
        yield from _finding(group, several_ranks=record.ranks > 1)
    for kind, count in left_out.items():
        yield text(
            f"{kind}: {words.plural(count, 'more finding')} of this kind; "
            "holdfast report --format json lists all of them."
        )


def _finding(group: FindingGroup, *, several_ranks: bool) -> Iterator[str]:
    finding, cause = group.finding, cause_of(group.finding)
    title = title_of(finding, cause)
    yield f"### {text(finding.code)} {text(title)} ({finding.severity.word})"
    if cause and (cause.where or cause.place):
        where = [code(cause.where) if cause.where else "", text(cause.place)]
        yield ", ".join(filter(None, where))
    yield text(words.capital(finding.message))
    if cause:
        yield from _evidence(cause)
    yield f"**Fix:** {text(words.capital(finding.advice))}"
    if (crash := crash_of(finding)) is not None:
        yield from _crash(crash)
    if cause and cause.diff:
        yield fence(cause.diff, "diff")
    facts = facts_of(group, cause, several_ranks=several_ranks)
    rows = [f"- {label}: {text(value)}" for label, value in facts.rows]
    if facts.numbers:
        reported = ", ".join(f"{label} {value}" for label, value in facts.numbers)
        rows.insert(0, f"- numbers: {text(reported)}")
    for other in group.findings[1:]:
        said = f"{other.code}, {other.message}; {other.advice}"
        rows.append(f"- so also: {text(said)}")
    yield "\n".join([*rows, f"- more: {code(facts.explain)}"])


def _crash(crash: CrashDetails) -> Iterator[str]:
    if crash.operands:
        yield table(VALUE_COLUMNS, crash.operands)
    if crash.traceback:
        yield fence(crash.traceback, "text")


def _evidence(cause: ShownCause) -> Iterator[str]:
    lines = cause.excerpt or tuple(zip(cause.guilty, cause.code.splitlines(), strict=False))
    if lines:
        width = len(str(max(number for number, _ in lines)))
        shown = [
            f"{'>' if number in cause.guilty else ' '} {number:>{width}}  {line}"
            for number, line in lines
        ]
        yield fence("\n".join(line.rstrip() for line in shown), "python")
    if cause.stats:
        yield table(STAT_COLUMNS, [stat.cells for stat in cause.stats])


def _ranks(record: RunRecord) -> Iterator[str]:
    ranks = record.summary.ranks
    if ranks:
        yield "## Ranks"
        yield table(HEAD, [one.cells for one in ranks[:SHOWN]])
        yield text(words.capital(rank_line(ranks)))


def _saved(record: RunRecord) -> Iterator[str]:
    saved = record.summary.saved_state
    if saved is None:
        return
    yield "## Saved state"
    if saved.failed:
        yield text(f"The state after the last complete step was not saved: {saved.failed}")
    if saved.path:
        yield f"{code(saved.path)} ({text(saved.what)})"
        yield fence("\n".join(saved.code), "python")


def _layers(record: RunRecord) -> Iterator[str]:
    found = stories(record)
    if found:
        yield "## The layers around it"
    for story in found:
        who = f", rank {story.rank}" if record.ranks > 1 else ""
        head = f"**Step {words.number(story.step)}{who}, {text(story.finding.code)}.** "
        yield head + text(" ".join(story.sentences))
    for updates in (
        updates_of(record.run_curves_of_ranks[0].lane) if record.run_curves_of_ranks else ()
    ):
        yield f"## How far the layers moved, optimizer {updates.opt}"
        yield text(
            "Change of the weights in one step over their norm; about 0.001 is a rule of thumb. "
            f"{words.plural(len(updates.shown), 'layer')} of {updates.total} shown"
            + (f", never moved: {words.listed(updates.still[:6])}." if updates.still else ".")
        )
        rows = [
            (
                u.layer,
                words.figure(u.low),
                words.figure(u.median),
                words.figure(u.high),
                f"{u.step}",
            )
            for u in updates.shown
        ]
        yield table(("layer", "smallest", "median", "largest", "at step"), rows)


def _curves(record: RunRecord) -> Iterator[str]:
    """What the plots of the page show, in words."""
    charts = (
        list(plots_of(record.run_curves_of_ranks[0], loss=True))
        if record.run_curves_of_ranks
        else []
    )
    if charts:
        lane = text(record.run_curves_of_ranks[0].lane.lane)
        yield "## Curves" + (f", {lane}" if len(record.lanes) > 1 else "")
        yield "\n".join(f"- {chart.title}: {text(chart.caption)}" for chart in charts)


def _rest(record: RunRecord) -> Iterator[str]:
    actions_taken = record.summary.actions_taken
    yield "## What holdfast did"
    if actions_taken:
        yield table(
            ("what", "when", "how or why"), [(d.what, d.when, d.why) for d in actions_taken]
        )
    else:
        yield "It recorded, and changed nothing."
    notes = {
        "Policy": record.summary.policy,
        "Not covered": record.summary.not_covered,
        "Errors inside holdfast (training went on)": record.summary.errors,
        "Processes": lane_notes(record.summary),
    }
    for title, lines in notes.items():
        if lines:
            yield f"## {title}"
            yield "\n".join(f"- {text(line)}" for line in words.first_notes(lines))
    yield "## The run"
    facts = environment_of(record.summary)
    yield "\n".join(f"- {label}: {_fact(label, value)}" for label, value in facts.items())
    yield text(guard_cost_words(record.summary))


def _fact(label: str, value: str) -> str:
    return code(value) if label == "command" else text(value)


def text(value: str) -> str:
    """Escape text: no markup, no mentions, no links.

    >>> text("a_b <c> @all")
    'a\\\\_b \\\\<c\\\\> @&#8203;all'
    """
    plain = " ".join(visible(words.shortened(value)).replace(words.NBSP, " ").split())
    plain = _START.sub(r"\1\\\2", _SPECIAL.sub(r"\\\1", plain))
    return _LIVE.sub(r"\g<0>&#8203;", plain)


def code(value: str) -> str:
    """A code span, also of text that holds backticks."""
    plain = " ".join(visible(words.shortened(value)).replace(words.NBSP, " ").split())
    ticks = "`" * (_longest_run(plain) + 1)
    pad = " " if plain.startswith("`") or plain.endswith("`") else ""
    return f"{ticks}{pad}{plain}{pad}{ticks}" if plain else ""


def fence(value: str, language: str) -> str:
    """A fenced block that its content cannot close."""
    value = words.shortened(value, _BLOCK)
    ticks = "`" * max(3, _longest_run(value) + 1)
    return f"{ticks}{language}\n{visible(value)}\n{ticks}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; numbers keep their digits together."""
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(text(cell) for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _longest_run(value: str) -> int:
    return max((len(run) for run in re.findall(r"`+", value)), default=0)
