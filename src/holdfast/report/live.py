"""One line per incident while the script runs, without breaking its progress bars.

    step 412  skipped: gradient of encoder.gru.weight_hh_l0 is NaN (loss finite)      [NUM002]
    step 412  cause: sqrt of 0 in backward at model.py:88, sample 20817
              fix: dist = torch.sqrt(sq + 1e-12)

Many NaN must not print many lines: of each code the first three occurrences are printed, then the
10th, the 100th, the 1,000th; each cause only once. Recovery actions are always printed, except
frequent ones.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from ..detectors.judge import Key
from ..run import Rows
from ..types import Event, Finding
from . import words
from .health import Health
from .rescue_words import rescue_of
from .saved_state import saved_line

# Carriage return and "erase line": a half-drawn progress bar gives way and is drawn again
# below by its owner.
CLEAR = "\r\x1b[2K"
_FIRST = 3
_COLUMN = 88
# A longer fix is replaced by the advice.
_FIX = 120
# Of these the first are printed and then every power of ten, as of findings.
_OFTEN = {"quarantine", "unreadable", "clipping", "scaler", "level", "checkpoint"}
# Printed at the end, in the report.
_LATER = {"snapshots"}


class Live:
    """Prints findings and events as lines, few enough to be read.

    Args:
        say: writes one whole line at once; a newline is added by it.
        quiet: say nothing at all.
        health: steps between two health lines; 0 for none.
        terminal: whether lines appear on a terminal, between progress bars; found out from
            standard error when not given.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        quiet: bool = False,
        health: int = 0,
        terminal: bool | None = None,
    ) -> None:
        self._say = say
        self._quiet = quiet
        self._clear = CLEAR if (_on_terminal() if terminal is None else terminal) else ""
        self._counts: dict[str, int] = {}
        self._known: dict[tuple[int, Key], int] = {}
        self._printed: set[str] = set()
        self._done: set[tuple[int, str]] = set()
        self._health = Health(health)

    def show(self, findings: Iterable[Finding], events: Iterable[Event] = ()) -> None:
        """Print what is new; ``findings`` are those that a ``Judge`` returned as changed."""
        if self._quiet:
            return
        for event in events:
            self._show_event(event)
        for finding in sorted(findings, key=lambda f: f.last_step):
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
                self._say(f"{self._clear}{finding_line(finding, again=again)}")
            self._show_cause(finding)

    def show_health(self, lane: str, rank: int, rows: Rows | None) -> None:
        """The health lines that are due; of the first rank only, the others do the same."""
        if not self._quiet and rank == 0:
            for line in self._health.lines(lane, rows):
                self._say(f"{self._clear}{line}")

    def _show_event(self, event: Event) -> None:
        line = event_line(event)
        if not line or line in self._printed:
            return
        self._printed.add(line)
        before = self._counts.get(event.kind, 0)
        self._counts[event.kind] = before + 1
        if event.kind in _OFTEN and not _due(before, before + 1):
            return
        self._done.add((event.rank, str(event.data.get("code", ""))))
        self._say(f"{self._clear}{line}")

    def _show_cause(self, finding: Finding) -> None:
        """Print the cause of a finding, unless it was printed for another."""
        lines = cause_lines(finding)
        if not lines or lines[0] in self._printed:
            return
        self._printed.add(lines[0])
        before = self._counts.get("cause", 0)
        self._counts["cause"] = before + 1
        if _due(before, before + 1):
            for line in lines:
                self._say(f"{self._clear}{line}")


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
    rank = f"rank {finding.rank}  " if finding.rank else ""
    line = f"step {step}  {rank}{text}".replace(words.NBSP, " ")
    return f"{line.ljust(_COLUMN)}  [{finding.code}]"


def cause_lines(finding: Finding) -> list[str]:
    """Cause and fix of a finding; empty when the cause is unknown."""
    headline, given = finding.evidence.get("headline"), finding.evidence.get("cause")
    if not isinstance(headline, str) or not isinstance(given, Mapping):
        return []
    cause = cast("Mapping[str, Any]", given)
    step = cause.get("step")
    start = f"step {step if isinstance(step, int) else finding.step}  "
    rank = f"rank {finding.rank}  " if finding.rank else ""
    place = f" at {_shortened(finding.file)}:{finding.line}" if finding.file else ""
    sample = cause.get("sample")
    known = isinstance(sample, int | str) and str(sample) not in headline.split()
    who = f", sample {sample}" if known else ""
    first = f"{start}{rank}cause: {headline}{place}{who}"
    return [first, f"{' ' * len(start)}fix: {_fix(finding)}"]


def _fix(finding: Finding) -> str:
    """The new form of a statement on one line, else the advice."""
    diff = finding.evidence.get("diff")
    lines = diff.splitlines()[1:] if isinstance(diff, str) else []
    whole = [line[:1] for line in lines] == ["-", "+"]
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
    data = event.data
    if event.kind == "policy":
        return _policy_line(event)
    if (rescue := rescue_of(event)) is not None:
        if event.kind in _LATER or (event.kind == "checkpoint" and "failed" not in data):
            return ""
        rank = f"rank {event.rank}  " if event.rank else ""
        line = ": ".join(filter(None, [rescue.what, rescue.why])).replace(words.NBSP, " ")
        line = f"step {event.step}  {rank}{line}"
        return f"{line.ljust(_COLUMN)}  [{rescue.code}]" if rescue.code else line
    if event.kind == "switched_to_fused":
        return (
            f"holdfast: {data.get('cls', 'optimizer')} now runs as its fused kernel, which can "
            "skip a step by itself (--no-fused to keep yours)"
        )
    if event.kind == "replay":
        return (
            f"step {event.step}  running its batch again to find the line; that step is skipped "
            "too (--no-replay switches this off)"
        )
    if event.kind == "not_covered":
        return f"holdfast: not covered: {data.get('what', '')}: {data.get('why', '')}"
    if event.kind == "holdfast_error":
        return (
            f"holdfast: {data.get('where', 'a part')} failed and is switched off, training goes "
            f"on: {data.get('error', '')}"
        )
    return saved_line(event)


def _policy_line(event: Event) -> str:
    """The policy in one line, without the budgets, which are in the report."""
    given = event.data.get("rules")
    rules = [str(rule) for rule in cast("list[Any]", given)] if isinstance(given, list) else []
    acts = [rule.partition(" (")[0] for rule in rules]
    acts = [rule for rule in acts if not rule.endswith(": observe")]
    if event.rank or not rules:
        return ""
    if not acts:
        return "holdfast: policy: observe everything, change nothing"
    return f"holdfast: policy: {'; '.join(acts)}; all else: observe (--observe to only record)"


def _due(before: int, now: int) -> bool:
    """Whether counting from ``before`` to ``now`` passed 1, 2, 3 or a power of ten."""
    if now <= before:
        return False
    return before < _FIRST or len(str(now)) > len(str(before))


def _on_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False
