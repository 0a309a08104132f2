"""One line per incident while the script runs, without breaking its progress bars.

    step 412  skipped: gradient of encoder.gru.weight_hh_l0 is NaN (loss finite)      [NUM002]
    step 412  cause: sqrt of 0 in backward at model.py:88, sample 20817
              fix: dist = torch.sqrt(sq + 1e-12)

Before them comes one short line, when training begins: what is guarded and where it is recorded.
Many NaN must not print many lines: of each code the first three occurrences are printed, then the
10th, the 100th, the 1,000th; each cause only once. Recovery actions are always printed, except
frequent ones. On a terminal lines are wrapped to its width; in a file each is one line.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping

from ..detectors.judge import Key
from ..harmless import visible_line
from ..records.crash import ProgressAgain
from ..records.memory import BatchSplit
from ..records.nonfinite import BatchReplay
from ..records.recovery import (
    ClippingSwitched,
    NewLossLevel,
    RolledBack,
    RunStopped,
    SnapshotTotals,
)
from ..records.resuming import CheckpointResult, Resumed
from ..records.run import NotCovered, PartFailed, PolicyRules
from ..records.steps import SwitchedToFused
from ..run import Rows
from ..types import Event, Finding, Severity, place_words
from . import words
from .action_words import rescue_of
from .cause import cause_of
from .health import HealthRows
from .layout import Line, Span, line, paragraph, shown
from .saved_state import saved_line
from .terminal import Terminal

# Carriage return and "erase line": a half-drawn progress bar gives way and is drawn again
# below by its owner.
CLEAR = "\r\x1b[2K"
_FIRST = 3
_COLUMN = 88
# A longer fix is replaced by the advice.
_FIX = 120
# Of these the first are printed and then every power of ten, as of findings.
_OFTEN = {
    "quarantine",
    ClippingSwitched.kind,
    "scaler",
    NewLossLevel.kind,
    CheckpointResult.kind,
}
# Printed at the end, in the report; of an unreadable sample the finding tells.
_LATER = {SnapshotTotals.kind, "unreadable"}
# What every run does, printed on request.
_ASKED = {"policy", "switched_to_fused"}
_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold cyan"}
# The step or the name of a line, what it says, and the code at its end.
_PARTS = re.compile(r"(?P<head>step \d+ |holdfast:| +)? *(?P<text>.*?)(?P<code> +\[\w+\])?")
_LEADS = {"cause:": "bold", "fix:": "green"}


class Live:
    """Prints findings and events as lines, few enough to be read.

    Args:
        say: writes one whole line at once; a newline is added by it.
        quiet: say nothing at all.
        verbose: also the policy and what every run does.
        health: steps between two health lines; 0 for none.
        start: the first line, when training begins.
        terminal: where lines appear; standard error's when not given.
        summed_up: a summary follows, which tells of the exception that ended the run.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        quiet: bool = False,
        verbose: bool = False,
        health: int = 0,
        start: str = "",
        terminal: Terminal | None = None,
        summed_up: bool = False,
    ) -> None:
        self._say = say
        self._quiet, self._verbose = quiet, verbose
        self._start = start
        self._terminal = terminal
        self._summed_up = summed_up
        self._counts: dict[str, int] = {}
        self._known: dict[tuple[int, Key], int] = {}
        self._printed: set[str] = set()
        self._done: set[tuple[int, str]] = set()
        self._health = HealthRows(health)

    def show(self, findings: Iterable[Finding], events: Iterable[Event] = ()) -> None:
        """Print what is new; ``findings`` are those that a ``Judge`` returned as changed."""
        if self._quiet:
            return
        # An action is printed with its numbers, so that its finding need not be; but samples are
        # quarantined because of a finding, and read better below it.
        events = list(events)
        after = [event for event in events if event.kind == "quarantine"]
        for event in events:
            if event.kind != "quarantine":
                self._show_event(event)
        for finding in sorted(findings, key=lambda f: f.last_step):
            if not (self._summed_up and "traceback" in finding.evidence):
                self._show_finding(finding)
        for event in after:
            self._show_event(event)

    def _show_finding(self, finding: Finding) -> None:
        place = (finding.rank, finding.key)
        count = int(finding.evidence.get("count", 1))
        before = self._counts.get(finding.code, 0)
        known = self._known.get(place, 0)
        # A rank that was restarted counts from one again.
        again = 0 < known <= count
        now = before + count - (known if again else 0)
        self._known[place], self._counts[finding.code] = count, now
        # The action was printed already, with the numbers.
        done = finding.action in ("rollback", "stop")
        if _due(before, now) and not (done and (finding.rank, finding.code) in self._done):
            self._tell(finding_line(finding, again=again), _STYLES[finding.severity])
        self._show_cause(finding)

    def show_health(self, lane: str, rank: int, rows: Rows | None) -> None:
        """The health lines that are due; of the first rank only, the others do the same."""
        if not self._quiet and rank == 0:
            for text in self._health.lines(lane, rows):
                self._begin()
                self._tell(text)

    def _show_event(self, event: Event) -> None:
        if event.kind == "policy" and not event.rank:
            self._begin()
        if event.kind in _ASKED and not self._verbose:
            return
        text = event_line(event)
        if not text or text in self._printed:
            return
        self._printed.add(text)
        before = self._counts.get(event.kind, 0)
        self._counts[event.kind] = before + 1
        if event.kind in _OFTEN and not _due(before, before + 1):
            return
        done = RolledBack.of(event) or RunStopped.of(event)
        if done is not None:
            self._done.add((event.rank, done.code))
        self._tell(text, "bold")

    def _begin(self) -> None:
        """The first line, before any other of a training."""
        if self._start:
            start, self._start = self._start, ""
            self._tell(start)

    def _tell(self, text: str, style: str = "") -> None:
        """Print one line: as it is into a file, wrapped and in colour on a terminal."""
        # Asked each time: a window changes its size.
        terminal = Terminal.of(sys.stderr) if self._terminal is None else self._terminal
        text = visible_line(words.shortened(text))
        if terminal.there:
            self._say(f"{CLEAR}{shown(fitted(text, terminal.width, style), terminal)}".rstrip("\n"))
        else:
            self._say(text)

    def _show_cause(self, finding: Finding) -> None:
        """Print the cause of a finding, unless it was printed for another."""
        lines = cause_lines(finding)
        if not lines or lines[0] in self._printed:
            return
        self._printed.add(lines[0])
        before = self._counts.get("cause", 0)
        self._counts["cause"] = before + 1
        if _due(before, before + 1):
            for text in lines:
                self._tell(text)


def start_line(script: str, folder: str, *, acts: bool) -> str:
    """The first line of a run: what is guarded, and where it is recorded.

    >>> start_line("train.py", "runs/first", acts=True)
    'holdfast: guarding train.py, recording to runs/first'
    """
    does = "guarding" if acts else "only watching"
    return f"holdfast: {does} {script or 'this loop'}, recording to {folder}"


def fitted(text: str, width: int, style: str = "") -> list[Line]:
    """A line as a paragraph that begins below its step; ``style`` is that of its code."""
    found = _PARTS.fullmatch(text)
    if found is None:
        return [line(text)]
    head, said, code = found["head"] or "", found["text"], (found["code"] or "").strip()
    indent = len(head) + 1 if head.strip() else len(head)
    lead = next((word for word in _LEADS if said.startswith(word)), "")
    rows = paragraph(
        said.removeprefix(lead).strip(), label=lead, label_style=_LEADS.get(lead, ""), width=width,
        indent=indent,
    )  # fmt: skip
    rows[0] = (Span(head.ljust(indent), "bold" if head == "holdfast:" else "dim"), *rows[0][1:])
    if not code:
        return rows
    used = sum(len(span.text) for span in rows[-1])
    if used + 2 + len(code) <= width:
        gap = " " * max(2, min(_COLUMN, width - len(code) - 2) + 2 - used)
        rows[-1] = (*rows[-1], Span(gap), Span(code, style))
    else:
        rows.append(line(" " * indent, Span(code, style)))
    return rows


def finding_line(finding: Finding, *, again: bool = False) -> str:
    """One line for a finding; ``again`` for one that was printed before."""
    step, text = finding.step, finding.message
    if again:
        step = finding.last_step
        headline = text.partition(": ")[2].partition(" (")[0] or text
        often = words.occurrences(finding).partition(";")[0]
        text = f"again: {headline} ({often})"
    elif text.startswith(f"step {step}"):
        text = text.removeprefix(f"step {step}").lstrip(" :")
    # One that compares ranks names them itself.
    rank = f"rank {finding.rank}  " if finding.rank and "ranks" not in finding.evidence else ""
    reported = f"step {step}  {rank}{text}{words.doubt(finding)}".replace(words.NBSP, " ")
    return f"{reported.ljust(_COLUMN)}  [{finding.code}]"


def cause_lines(finding: Finding) -> list[str]:
    """Cause and fix of a finding; empty when the cause is unknown."""
    headline, cause = finding.evidence.get("headline"), cause_of(finding)
    known = isinstance(finding.evidence.get("cause"), Mapping)
    if not known or not isinstance(headline, str) or cause is None:
        return []
    start = f"step {cause.step}  "
    rank = f"rank {finding.rank}  " if finding.rank else ""
    near = f"at {place_words(_shortened(finding.file), finding.line)}" if finding.file else ""
    if not headline and (not near or near in finding.message):
        return []  # the line above says as much
    place = " ".join(filter(None, [headline, near]))
    sample = cause.recorded.sample
    new = isinstance(sample, int | str) and str(sample) not in headline.split()
    who = f", sample {sample}" if new else ""
    first = f"{start}{rank}cause: {place}{who}"
    return [first, f"{' ' * len(start)}fix: {_fix(finding)}"]


def _fix(finding: Finding) -> str:
    """The new form of a statement on one line, else the advice."""
    diff = finding.evidence.get("diff")
    lines = diff.splitlines()[1:] if isinstance(diff, str) else []
    whole = [row[:1] for row in lines] == ["-", "+"]
    new = lines[1][1:].strip() if whole else ""
    return new if 0 < len(new) <= _FIX else finding.advice


def _shortened(path: str) -> str:
    """A path below the working directory without it."""
    try:
        here = os.path.join(os.getcwd(), "")
    except OSError:
        return path
    return path.removeprefix(here)


def event_line(event: Event) -> str:
    """One line for an event that the user should see now; empty for all others."""
    if (policy := PolicyRules.of(event)) is not None:
        return "" if event.rank else _policy_line(policy)
    if (rescue := rescue_of(event)) is not None:
        saved = CheckpointResult.of(event)
        if event.kind in _LATER or (saved is not None and not saved.failed):
            return ""
        split = BatchSplit.of(event)
        if split is not None and split.first and not split.refused:
            return ""  # the finding says it
        rank = f"rank {event.rank}  " if event.rank else ""
        # From which file a run was resumed is said before it starts.
        why = "" if event.kind == Resumed.kind else rescue.why
        did = ": ".join(filter(None, [rescue.what, why])).replace(words.NBSP, " ")
        reported = f"step {event.step}  {rank}{did}"
        return f"{reported.ljust(_COLUMN)}  [{rescue.code}]" if rescue.code else reported
    if (switched := SwitchedToFused.of(event)) is not None:
        return (
            f"holdfast: {switched.cls or 'optimizer'} now runs as its fused kernel, which can "
            "skip a step by itself (--no-fused to keep yours)"
        )
    if event.kind == BatchReplay.kind:
        return (
            f"step {event.step}  running its batch again to find the line; that step is skipped "
            "too (--no-replay switches this off)"
        )
    if (gap := NotCovered.of(event)) is not None:
        return f"holdfast: not covered: {gap.what}: {gap.why}"
    if (again := ProgressAgain.of(event)) is not None:
        pause = words.duration(again.seconds).replace(words.NBSP, " ")
        return f"step {event.step}  goes on after {pause} without a step or a batch"
    if (failed := PartFailed.of(event)) is not None:
        return (
            f"holdfast: {failed.where} failed and is switched off, training goes on: {failed.error}"
        )
    return saved_line(event)


def _policy_line(policy: PolicyRules) -> str:
    """The policy in one line, without the budgets, which are in the report."""
    acts = [rule.partition(" (")[0] for rule in policy.rules]
    acts = [rule for rule in acts if not rule.endswith(": observe")]
    if not policy.rules:
        return ""
    if not acts:
        return "holdfast: policy: observe everything, change nothing"
    return f"holdfast: policy: {'; '.join(acts)}; all else: observe (--observe to only record)"


def _due(before: int, now: int) -> bool:
    """Whether counting from ``before`` to ``now`` passed 1, 2, 3 or a power of ten."""
    if now <= before:
        return False
    return before < _FIRST or len(str(now)) > len(str(before))
