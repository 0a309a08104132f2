"""Verdict on a run in one word and one sentence."""

from __future__ import annotations

from dataclasses import dataclass

from ..types import Finding, Severity
from . import words
from .cause import cause_of, names_in
from .crash import crash_of
from .restarts import restart_line
from .summary import RunSummary

INFO, WARN, BAD = "info", "warn", "bad"

# Word and tone by how the run ended; a finished run is judged by its findings.
_ENDINGS = {
    "failed": ("Crashed", BAD),
    "killed": ("Killed", BAD),
    "stopped": ("Stopped", BAD),
    "interrupted": ("Interrupted", WARN),
    "running": ("Still going", INFO),
    "unfinished": ("Unfinished", INFO),
}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The word, how bad it is (``info``, ``warn``, ``bad``) and the sentence."""

    word: str
    tone: str
    sentence: str


def verdict_of(summary: RunSummary) -> Verdict:
    """Judge a run by how it ended and by what was found."""
    word, tone = _ENDINGS.get(summary.outcome, ("", ""))
    if not word:
        word, tone = "Finished", INFO
        if summary.findings:
            worst = max(finding.severity for finding in summary.findings)
            word = "Finished with findings" if worst > Severity.INFO else "Finished"
            tone = BAD if worst >= Severity.ERROR else WARN if worst > Severity.INFO else INFO
        elif summary.unreadable:
            tone = WARN
        sentence = _finished(summary)
    else:
        sentence = _cut_short(summary)
    if summary.stands_still and summary.outcome in ("finished", "running", "interrupted"):
        # How it ended matters less than that nothing came of it.
        word, tone = "Not training", BAD
        sentence = f"{words.capital(summary.skipped_steps)}. {sentence}"
    return Verdict(word=word, tone=tone, sentence=sentence)


def headline_of(finding: Finding) -> str:
    """A finding in a few words: the cause with its line where known, else the message."""
    cause = cause_of(finding)
    if cause is None or not (cause.headline or cause.near):
        return finding.message.partition(": ")[2] or finding.message
    what = cause.headline or finding.name.replace("_", " ")
    return f"{what} at {cause.near}" if cause.near else what


def _finished(summary: RunSummary) -> str:
    if summary.unreadable:
        lead = "Part of the recording is damaged; "
        found = words.plural(len(summary.findings), "finding")
        return f"{lead}{found} in {words.plural(summary.steps, 'step')} that could be read."
    change = summary.loss_change
    if not summary.findings:
        also = f"; {change}" if change else ""
        return f"No findings in {words.plural(summary.steps, 'step')}{also}."
    worst = summary.findings[0]
    what = words.capital(headline_of(worst), names_in(worst, cause_of(worst)))
    others = len(summary.findings) - 1
    more = f", and {words.plural(others, 'other finding')}" if others else ""
    return f"{what}{more}: {_fate(summary)}."


def _fate(summary: RunSummary) -> str:
    done: list[str] = []
    if summary.stands_still:
        return "nothing was learnt from the steps that were skipped"
    if summary.skipped:
        share = f"{words.number(summary.skipped)} of {words.plural(summary.steps, 'step')}"
        done.append(f"{share} {'was' if summary.skipped == 1 else 'were'} skipped")
    if summary.rollbacks:
        times = words.plural(summary.rollbacks, "time")
        done.append(f"the run was rolled back {'once' if summary.rollbacks == 1 else times}")
    if again := restart_line(summary.meta):
        done.append(f"the script was {again}")
    if not done:
        return "no step was skipped"
    return f"{', '.join(done)}, and the run went on to its end"


def _cut_short(summary: RunSummary) -> str:
    line = summary.ending.line
    first = summary.findings[0] if summary.findings else None
    others = words.plural(len(summary.findings) - 1, "other finding")
    more = f" and {others}" if len(summary.findings) > 1 else ""
    found = ""
    if first is not None and line.startswith("crashed with ") and crash_of(first) is not None:
        line, found = _answer(first, line), f";{more.removeprefix(' and')}" * bool(more)
    elif first is not None:
        found = f"; found: {headline_of(first)}{more}"
    line = line.removeprefix("crashed with ").removeprefix("failed with ")
    joint = "," if "," in line or ":" in line else ""
    again = restart_line(summary.meta)
    after = f"{joint} after {words.plural(summary.steps, 'step')}{f', {again}' if again else ''}"
    names = set[str]() if first is None else names_in(first, cause_of(first))
    return f"{words.capital(line, names)}{after}{found}."


def _answer(crash: Finding, line: str) -> str:
    """Why a run crashed, where that is known, else by what: its finding has the whole exception."""
    cause, error = cause_of(crash), crash.evidence.get("error")
    if cause is None or not isinstance(error, str):
        return line
    kind = error.partition(":")[0]
    return headline_of(crash) if cause.headline else f"{kind} at {cause.near}"
