"""Start a script again after a crash, a hang, a kill or a lost device: ``--restart K``.

Only where it goes on from its last good state; never from the beginning, over what it has written.
A batch that ends the run twice at the same line is skipped from then on.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from ..config import Settings
from ..errors import RunFolderError
from ..records.crash import NoProgress, RaisedException
from ..records.recovery import RunStopped
from ..report.restarts import RESTARTS, last_restart, restarts_of
from ..run import LaneData, Run, read_run
from ..run.batch_mark import batch_mark
from ..run.resumption import RESUMED_FROM, Resumable, resumable
from ..types import Event
from .supervisor import ENDING, Outcome, say, supervise

# Seconds before the first restart; twice as many before each further one, up to the last number.
# Guesses: a device or a file system that comes back does so within a minute.
_FIRST, _MOST = 1.0, 60.0
# Python itself says that the same would happen again.
_CODE = ("SyntaxError", "IndentationError", "TabError", "ImportError", "ModuleNotFoundError")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What ended a process."""

    what: str
    """In a few words, with the line."""
    step: int = -1
    """The step it was at."""
    error: str = ""
    """Class of the exception; ``hang``, or the name of the signal."""
    line: str = ""
    mark: str = ""
    """Which batch it was; empty where that is not known."""
    samples: tuple[Any, ...] = ()
    culprit: Any = None
    """The one of them that did it, where that is known: it comes again in other batches."""
    started: bool = True
    """Whether training had begun."""

    def is_like(self, other: Failure) -> bool:
        """Whether both have the same cause."""
        if (self.error, self.line) != (other.error, other.line):
            return False
        if self.mark and other.mark:
            known = self.culprit is not None and self.culprit == other.culprit
            return known or self.mark == other.mark
        return self.step == other.step


class Restarts:
    """Decides after each process whether another one is started.

    Args:
        run: the run, which all processes share.
        settings: of the first process.
        ask: whether the run can go on.
    """

    def __init__(
        self, run: Run, settings: Settings, ask: Callable[[Run], Resumable] = resumable
    ) -> None:
        self._run, self._ask = run, ask
        self._settings = settings
        self._failures: list[Failure] = []
        self._began = time.time()

    def after(self, outcome: Outcome) -> Settings | None:
        """Settings for the next process; None when there is none, which is said if it matters."""
        if not outcome.failed:
            return None
        lanes = self._lanes()
        since = last_restart(self._run.meta)
        events = [event for lane in lanes for event in lane.events if event.time >= since]
        failure = _failure(outcome, lanes, since)
        why_not, answer = self._why_not(failure, outcome, events)
        if why_not:
            say(f"holdfast: not started again: {why_not}")
            return None
        self._failures.append(failure)
        skip = self._batches_to_skip()
        if skip is None:
            say(
                f"holdfast: not started again: it ended twice at step "
                f"{failure.step}: {failure.what}"
            )
            return None
        self._record(failure, skip, answer)
        quarantine = dataclasses.replace(self._settings.quarantine, batches=skip)
        own = 0.0 if answer.accepted else self._began
        return dataclasses.replace(
            self._settings,
            quarantine=quarantine,
            restart=dataclasses.replace(self._settings.restart, own=own),
        )

    @property
    def pause(self) -> float:
        """Seconds to wait before the process that is due: more while it comes no further."""
        in_vain, furthest = 0, -1
        for failure in self._failures:
            in_vain = 0 if failure.step > furthest else in_vain + 1
            furthest = max(furthest, failure.step)
        return min(_MOST, _FIRST * 2**in_vain)

    def _why_not(
        self, failure: Failure, outcome: Outcome, events: Sequence[Event]
    ) -> tuple[str, Resumable]:
        answer = Resumable(accepted=False)
        times = self._settings.restart.times
        if outcome.asked or failure.error == "KeyboardInterrupt":
            return f"it was asked to end ({outcome.asked or 'Ctrl-C'})", answer
        if any(event.kind == RunStopped.kind for event in events):
            return "the policy has stopped it", answer
        if failure.error in _CODE:
            return f"{failure.what} would happen again", answer
        if not failure.started:
            return f"no step was recorded before the end ({failure.what})", answer
        if len(self._failures) >= times:
            return f"{times} of {times} restarts were used; the last end: {failure.what}", answer
        if self._failures and not events:
            return f"the new process recorded nothing ({failure.what})", answer
        answer = self._ask(self._run)
        if not answer.accepted and not answer.own:
            return f"it cannot be resumed, {answer.why}; {failure.what}", answer
        return "", answer

    def _batches_to_skip(self) -> tuple[str, ...] | None:
        """Batches that have ended the run twice; None where it ends again and none is to blame."""
        known = self._settings.quarantine.batches
        marks = [failure.mark for failure in self._failures]
        twice = {b.mark for b in self._failures if self._times(b) > 1}
        if "" in twice and self._times(self._failures[-1]) > 1 and not self._failures[-1].mark:
            return None
        if any(marks.count(mark) > 2 for mark in twice):
            return None  # it was skipped, and came all the same
        return (*known, *sorted(twice - {"", *known}))

    def _times(self, failure: Failure) -> int:
        return sum(other.is_like(failure) for other in self._failures)

    def _record(self, failure: Failure, skip: Sequence[str], answer: Resumable) -> None:
        """Write down what ended the process and what follows."""
        number, times = len(self._failures), self._settings.restart.times
        skipped = failure.mark in skip
        reported = {
            "time": datetime.now(UTC).isoformat(),
            "step": failure.step,
            "reason": failure.what,
            "pause": self.pause,
            "skips": list(failure.samples) if skipped else [],
        }
        changes: dict[str, Any] = {RESTARTS: [*restarts_of(self._run.meta), reported]}
        if answer.accepted:
            # The next process goes on from there.
            point = {"step": answer.step, "checkpoint": answer.checkpoint}
            changes[RESUMED_FROM] = {"run": str(self._run.path), **point}
        self._run.update_meta(**changes)
        also = f"; the batch of {_named(failure.samples)} is skipped" if skipped else ""
        say(
            f"holdfast: started again in {self.pause:.0f} s, restart {number} of {times}: "
            f"{failure.what}{also}"
        )

    def _lanes(self) -> list[LaneData]:
        try:
            return read_run(self._run)
        except RunFolderError:
            return []


def run_to_the_end(
    argv: Sequence[str],
    run: Run,
    settings: Settings,
    *,
    wait: Callable[[float], bool] | None = None,
    ask: Callable[[Run], Resumable] = resumable,
) -> int:
    """Run a script and, where that was asked for, start it again; the last ``waitpid`` status.

    Args:
        argv: the program and its arguments.
        run: where all of it is recorded.
        settings: of the run.
        wait: waits so many seconds; False to give up, for tests.
        ask: whether the run can go on, for tests.
    """
    restarts = Restarts(run, settings, ask)
    while True:
        outcome = supervise(argv, run, settings)
        if not settings.restart.times:
            return outcome.status
        following = restarts.after(outcome)
        if following is None or not (wait or _wait)(restarts.pause):
            return outcome.status
        settings = following


def _wait(seconds: float) -> bool:
    """Wait before a restart; False when somebody asks to end meanwhile."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        return signal.sigtimedwait(ENDING, seconds) is None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _failure(outcome: Outcome, lanes: Sequence[LaneData], since: float) -> Failure:
    """What ended a process that began at ``since``, from how it ended and what it recorded."""
    events = [event for lane in lanes for event in lane.events if event.time >= since]
    events.sort(key=lambda event: event.time)
    rows = [lane.steps for lane in lanes if len(lane.steps)]
    # One that goes on right before the batch which ended the last makes no step of its own.
    step = max((int(steps["step"].max()) for steps in rows), default=-1) + 1
    if outcome.hung is not None:
        found = outcome.hung
        seen = next(filter(None, map(NoProgress.of, reversed(events))), None)
        named = list(found.evidence.get("samples") or ())
        return Failure(
            what=f"it hung at {found.file}:{found.line}" if found.file else "it hung",
            step=found.step,
            error="hang",
            line=f"{found.file}:{found.line}",
            mark=(seen.mark if seen is not None else None) or "",
            samples=(seen.samples if seen is not None else None) or tuple(named),
            culprit=named[0] if len(named) == 1 else None,
            started=bool(rows),
        )
    for event in reversed(events):
        raised = RaisedException.of(event)
        if raised is None:
            continue
        said = (raised.message.strip().splitlines() or [""])[0]
        line = f"{raised.file}:{raised.line}" if raised.file else ""
        indices = list(raised.indices or ())
        return Failure(
            what=f"{raised.type}: {said[:120]}" + (f" at {line}" if line else ""),
            step=event.step,
            error=raised.type,
            line=line,
            mark=batch_mark(indices) if indices else "",
            samples=tuple(indices),
            culprit=_culprit(lanes, event),
            started=bool(rows),
        )
    code = os.waitstatus_to_exitcode(outcome.status)
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    what = f"killed by {name}" if code < 0 else f"ended with {name}"
    return Failure(what=what, step=step, error=name, started=bool(rows))


def _culprit(lanes: Sequence[LaneData], raised: Event) -> Any:
    """The sample that RUN001 blames for an exception; None where it names none, or several."""
    for lane in lanes:
        for finding in lane.findings if raised in lane.events else ():
            samples = finding.evidence.get("samples")
            if finding.code == "RUN001" and isinstance(samples, list):
                named = cast("list[Any]", samples)
                return named[0] if len(named) == 1 else None
    return None


def _named(samples: Sequence[Any]) -> str:
    """A few samples by their indices."""
    few = ", ".join(map(str, samples[:4]))
    return f"{len(samples)} samples ({few}{', …' if len(samples) > 4 else ''})"
