"""How a run ended, from ``run.json``, its events and the processes that are still there."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..run import Life, Run, life_of
from ..types import Event
from . import words

KINDS = ("exception", "stop", "training_ended", "resume")
"""The events that an ending is told from."""

# A run that has written nothing for so long is told as quiet, and on another machine not called
# running. A guess: steps are written twice a second, steps and validations rarely take longer.
_QUIET = 600.0
# Nor is it believed alive after so long: a guess, far beyond any step or validation.
_LOST = 24 * 3600.0
_GONE = "killed together with holdfast: by SIGKILL, out of memory or a reboot"
_DEAD = ("failed", "killed", "stopped")


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a run ended: one word for programs, one line for people."""

    word: str
    """finished, failed, killed, stopped, interrupted, running or unfinished."""
    line: str
    quiet: bool = False
    """Whether a run that is running has written nothing for a long time."""

    @property
    def died(self) -> bool:
        """Whether the run ended before its time and nobody asked it to."""
        return self.word in _DEAD


def ending_of(run: Run, events: Sequence[Event]) -> Ending:
    """How a run ended; ``events`` may be those of ``KINDS`` alone."""
    # What ended the process before a resumed one is not how the run ended.
    resumed = max((event.time for event in events if event.kind == "resume"), default=0.0)
    events = [event for event in events if event.time >= resumed]
    exception = _first(events, "exception")
    stop = _first(events, "stop")
    trained = _first(events, "training_ended")
    life = life_of(run)
    if life.state not in ("ended", "closed"):
        return _open_end(life, exception)
    if stop is not None:
        why = " ".join(str(stop.get("why") or stop.get("code", "")).split())
        return Ending(word="stopped", line=f"stopped by holdfast, {why}")
    code = run.meta.get("exit_code")
    line = "finished"
    if life.state == "closed":
        code = 0 if exception is None else 1
        line = "finished; its exit code is not known, since holdfast was killed before"
    elif run.meta.get("status") != "finished":
        return Ending(word="unfinished", line=f"not finished: status {run.meta.get('status')!r}")
    if code in (None, 0) and trained is not None and trained.get("interrupted"):
        return Ending(word="interrupted", line="interrupted from the keyboard")
    if code is None or code == 0:
        return Ending(word="finished", line=line)
    return _failure(code, exception)


def _open_end(life: Life, exception: Mapping[str, Any] | None) -> Ending:
    """The end of a run that ``run.json`` calls running, by who is left of it."""
    if life.state == "killed":
        if exception is not None:
            return _failure(1, exception)
        return Ending(word="killed", line=_GONE)
    where = f" on {life.host}" if life.host else ""
    if life.state == "running":
        line = f"still running, process {life.pid}"
        if life.orphaned:  # its ring is all that it writes to, which is not seen from outside
            return Ending(word="running", line=f"{line}, its supervisor was killed")
        quiet = life.silence > _QUIET
        silence = f", nothing written for {words.duration(life.silence)}" if quiet else ""
        return Ending(word="running", line=line + silence, quiet=quiet)
    if life.host and life.silence <= _QUIET:
        return Ending(word="running", line=f"still running{where}")
    if life.host and life.silence > _LOST:
        silence = words.duration(life.silence)
        return Ending(word="killed", line=f"lost: nothing written{where} for {silence}")
    return Ending(
        word="unfinished",
        line=f"not finished: it is still running{where}, or holdfast itself was killed",
    )


def _failure(code: object, exception: Mapping[str, Any] | None) -> Ending:
    """The end of a run whose exit code is not 0."""
    if not isinstance(code, int):
        return Ending(word="failed", line=f"ended with {code!r}")
    number = -code if code < 0 else code - 128
    if code in (-signal.SIGINT, 130) or (exception or {}).get("type") == "KeyboardInterrupt":
        return Ending(word="interrupted", line="interrupted from the keyboard")
    if code < 0 or 128 < code < 160:
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        hint = ", perhaps out of host memory" if name == "SIGKILL" else ""
        return Ending(word="killed", line=f"killed by {name}{hint}")
    if exception is None:
        return Ending(word="failed", line=f"failed with exit code {code}")
    lines = str(exception.get("message", "")).strip().splitlines()
    what = f"{exception.get('type', 'an exception')}{': ' + lines[0][:200] if lines else ''}"
    file, line = exception.get("file"), exception.get("line")
    where = f" at {file}:{line}" if file else ""
    return Ending(word="failed", line=f"crashed with {what}{where}")


def _first(events: Sequence[Event], kind: str) -> Mapping[str, Any] | None:
    return next((event.data for event in events if event.kind == kind), None)
