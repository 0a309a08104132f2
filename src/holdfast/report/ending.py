"""How a run ended, from ``run.json``, its events and the processes that are still there."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ..detectors.kills import Kill
from ..detectors.peers import peer_is_gone
from ..records import Kind
from ..records.crash import Died, HostMemoryLevel, LeftLoop, RaisedException, SignalReceived
from ..records.recovery import RunStopped
from ..records.resuming import Resumed
from ..records.trainer import TrainingEnded
from ..run import Life, Run, life_of
from ..types import Event, place_words
from . import words
from .restarts import last_restart

K = TypeVar("K", bound=Kind)

_RECORDS = (
    RaisedException,
    LeftLoop,
    SignalReceived,
    Died,
    HostMemoryLevel,
    RunStopped,
    TrainingEnded,
    Resumed,
)
KINDS = ("end", *(record.kind for record in _RECORDS))
"""The events that an ending is reported from."""

# A run that has written nothing for so long is reported as quiet, and on another machine not called
# running. A guess: steps are written twice a second, steps and validations rarely take longer.
_QUIET = 600.0
# Nor is it believed alive after so long: a guess, far beyond any step or validation.
_LOST = 24 * 3600.0
# A script that goes on for more steps than these after a signal was not ended by it. A guess: some
# finish their epoch first.
_GOES_ON = 100
_GONE = "killed together with holdfast"
_DEAD = ("failed", "killed", "stopped")


@dataclass(frozen=True, kw_only=True)
class RunEnding:
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


def ending_of(run: Run, events: Sequence[Event]) -> RunEnding:
    """How a run ended; ``events`` may be those of ``KINDS`` alone."""
    # What ended the process before a resumed one is not how the run ended.
    resumed = max((event.time for event in events if event.kind == Resumed.kind), default=0.0)
    resumed = max(resumed, last_restart(run.meta))
    events = [event for event in events if event.time >= resumed]
    exception = first_exception(events)
    stop, trained = _first_of(RunStopped, events), _first_of(TrainingEnded, events)
    life = life_of(run)
    if life.state not in ("ended", "closed"):
        return _open_end(life, exception, events)
    if stop is not None:
        why = " ".join((stop.why or stop.code).split())
        return RunEnding(word="stopped", line=f"stopped by holdfast, {why}")
    code = run.meta.get("exit_code")
    line = "finished"
    if life.state == "closed":
        code = 0 if exception is None else 1
        line = "finished; its exit code is not known, since holdfast was killed before"
    elif run.meta.get("status") != "finished":
        return RunEnding(word="unfinished", line=f"not finished: status {run.meta.get('status')!r}")
    if code in (None, 0) and trained is not None and trained.interrupted:
        return RunEnding(word="interrupted", line="interrupted from the keyboard")
    left = _first_of(LeftLoop, events)
    if code in (None, 0) and left is not None:
        return _left(left)
    asked = _asked_to_end(events)
    if (
        asked
        and exception is None
        and (code is None or (isinstance(code, int) and 0 <= code < 128))
    ):
        how = "interrupted from the keyboard" if asked == "SIGINT" else f"ended by {asked}"
        end = f"exit code {code}" if code else "which the script handled"
        return RunEnding(word="interrupted", line=f"{how}, {end}")
    if code is None or code == 0:
        return RunEnding(word="finished", line=line)
    return _failure(code, exception, _death(events))


def _open_end(life: Life, exception: RaisedException | None, events: Sequence[Event]) -> RunEnding:
    """The end of a run that ``run.json`` calls running, by who is left of it."""
    if life.state == "killed":
        if exception is not None:
            return _failure(1, exception)
        gone = gone_together(events)
        died = None if gone is None else Died.of(gone)
        kill = Kill(data=died or Died(together=True))
        if kill.ran_out:
            why = f"killed for lack of memory, most likely, together with holdfast: {kill.used}"
            return RunEnding(word="killed", line=why)
        also = ", out of memory" if kill.perhaps else ""
        read = f" ({kill.used})" if kill.used and kill.perhaps else ""
        return RunEnding(word="killed", line=f"{_GONE}: by SIGKILL{also}{read} or a reboot")
    where = f" on {life.host}" if life.host else ""
    if life.state == "running":
        line = f"still running, process {life.pid}"
        if life.orphaned:  # its ring is all that it writes to, which is not seen from outside
            return RunEnding(word="running", line=f"{line}, its supervisor was killed")
        quiet = life.silence > _QUIET
        silence = f", nothing written for {words.duration(life.silence)}" if quiet else ""
        return RunEnding(word="running", line=line + silence, quiet=quiet)
    if life.host and life.silence <= _QUIET:
        return RunEnding(word="running", line=f"still running{where}")
    if life.host and life.silence > _LOST:
        silence = words.duration(life.silence)
        return RunEnding(word="killed", line=f"lost: nothing written{where} for {silence}")
    return RunEnding(
        word="unfinished",
        line=f"not finished: it is still running{where}, or holdfast itself was killed",
    )


def gone_together(events: Sequence[Event]) -> Event | None:
    """What the last reading of the memory says of a run that was killed together with holdfast.

    An Event as the supervisor would have written it; None where nothing was read.
    """
    read = [(event, found) for event in events if (found := HostMemoryLevel.of(event)) is not None]
    if not read:
        return None
    last, found = max(read, key=lambda pair: pair[0].time)
    died = Died(**vars(found), together=True)
    return replace(last, kind=died.kind, data=died.to_dict(), record=died)


def _failure(
    code: object, exception: RaisedException | None, died: Died | None = None
) -> RunEnding:
    """The end of a run whose exit code is not 0."""
    if not isinstance(code, int):
        return RunEnding(word="failed", line=f"ended with {code!r}")
    number = -code if code < 0 else code - 128
    by_hand = exception is not None and exception.type == "KeyboardInterrupt"
    if code in (-signal.SIGINT, 130) or by_hand:
        return RunEnding(word="interrupted", line="interrupted from the keyboard")
    if code < 0 or 128 < code < 160:
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        return RunEnding(word="killed", line=_killed(name, died))
    if exception is None:
        return RunEnding(word="failed", line=f"failed with exit code {code}")
    what = _raised(exception)
    if exception.gave_up is not None:
        how = f"gave up with exit code {code} after {what}, which the script caught"
        return RunEnding(word="failed", line=how)
    return RunEnding(word="failed", line=f"crashed with {what}")


def _asked_to_end(events: Sequence[Event]) -> str:
    """The signal at which a script ended by itself; empty where there was none or it went on."""
    last = max((event.step for event in events if event.kind == "end"), default=0)
    ended = [SignalReceived.of(event) for event in events if last - event.step <= _GOES_ON]
    names = [received.name for received in ended if received is not None]
    return next((name for name in reversed(names) if name in ("SIGINT", "SIGTERM")), "")


def _left(left: LeftLoop) -> RunEnding:
    """The end of a watched loop that an exception left, and the script went on."""
    if left.type == "KeyboardInterrupt":
        return RunEnding(word="interrupted", line="interrupted from the keyboard")
    line = f"left early with {_raised(left)}, which the script caught"
    return RunEnding(word="interrupted", line=line)


def _raised(exception: RaisedException | LeftLoop) -> str:
    """``ValueError: bad at train.py:3``."""
    lines = exception.message.strip().splitlines()
    said = f": {words.clip(lines[0], 120)}" if lines else ""
    what = f"{exception.type or 'an exception'}{said}"
    file, line = exception.file, exception.line
    return f"{what} at {place_words(file, line)}" if file else what


def _killed(name: str, died: Died | None) -> str:
    """By which signal, and what the memory had to do with it."""
    if name != "SIGKILL":
        return f"killed by {name}"
    # A shell between holdfast and the script tells the signal by its exit code alone.
    kill = Kill(data=(died or Died()).replace(signal=name))
    if kill.counted:
        return f"killed by the OOM killer, {kill.used or 'which the kernel counted'}"
    read = f": {kill.used}" if kill.used else ""
    if kill.ran_out:
        return f"killed for lack of memory (SIGKILL), most likely{read}"
    if kill.perhaps:
        return f"killed by SIGKILL, perhaps out of host memory{read}"
    return f"killed by SIGKILL, not for lack of memory{read}"


def _death(events: Sequence[Event]) -> Died | None:
    """What was read when the script was killed; others that it had started may have died, too."""
    died = [found for event in events if (found := Died.of(event)) is not None]
    own = [found for found in died if found.signal]
    return next(iter(own or died), None)


def first_exception(events: Sequence[Event]) -> RaisedException | None:
    """The exception that ended a run: of several ranks the first, and no echo of another's end."""
    in_order = sorted(events, key=lambda event: event.time)
    raised = [found for event in in_order if (found := RaisedException.of(event)) is not None]
    own = [found for found in raised if not peer_is_gone(found)]
    return next(iter(own or raised), None)


def _first_of(kind: type[K], events: Sequence[Event]) -> K | None:
    """The record of the first event of a kind; None without one."""
    return next(filter(None, map(kind.of, events)), None)
