"""Run the detectors over rows as they arrive and keep one finding per fault.

The same object serves a live run (many small deliveries) and ``holdfast check`` (one large
one), and both end with the same findings: every row is judged once, by itself and the
``HISTORY`` rows before it, however the rows were delivered.

    >>> import numpy as np
    >>> rows = np.zeros(3, dtype=[("step", "<i8"), ("loss", "<f4"), ("loss_bad", "<f4")])
    >>> rows["step"], rows["loss"], rows["loss_bad"] = [0, 1, 2], [1, np.nan, 2], [0, 1, 0]
    >>> [(f.code, f.step) for f in Judge().feed(rows)]
    [('NUM001', 1)]
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..records import RecordError, fault
from ..records.run import PartFailed
from ..records.steps import GuardedOptimizer
from ..types import Event, Finding
from . import (
    ALL,
    HISTORY,
    Detector,
    Explanation,
    Rows,
    Window,
)
from .case import Case
from .ranking import ranked

# Rows judged per round: bounds memory when a whole run is delivered at once.
_BLOCK = 4096
_EVENTS = 512
# Steps after the last row that are judged for their events.
_AFTER = 100

# Columns that a step without a row of its own takes from the last row.
_GOES_ON = ("time", "opt", "lr")

# The row of a run that recorded none.
_NOTHING = np.zeros((), dtype=[("step", "<i8"), ("time", "<f8"), ("loss", "<f4"), ("lr", "<f4")])

Key = tuple[str, int, str]


class Judge:
    """Keeps the recent rows of one lane, runs the detectors on them and merges their findings.

    Whoever delivers must hand over a batch record no later than the rows of its step. An event may
    come after them: what is measured when a step is over is recorded then. Those who judge events
    alone look at its row once more. A ``cause`` may come at any time: finding it takes a while.

    Args:
        detectors: classes, or instances where options differ from the defaults. Their order
            ranks findings of equal severity.
        rank: rank of the lane, noted in every finding.
        pause: called after each detector, by whoever must not work for long in one piece.
    """

    def __init__(
        self,
        detectors: Iterable[type[Detector] | Detector] = ALL,
        rank: int = 0,
        pause: Callable[[], None] | None = None,
    ) -> None:
        self.detectors = [d() if isinstance(d, type) else d for d in detectors]
        self.rank = rank
        self._pause = pause
        self.errors: list[Event] = []
        """A ``holdfast_error`` for each detector that failed and was switched off."""
        self._order = list(self.detectors)
        self._cases: dict[Key, Case] = {}
        self._rows: Rows | None = None
        self._waiting: list[Event] = []
        self._events: deque[Event] = deque(maxlen=_EVENTS)
        self._layers: dict[int, Sequence[str]] = {}
        self._buffers: dict[int, Sequence[str]] = {}
        self._batches: dict[int, Mapping[str, Any]] = {}
        self._causes: dict[tuple[int, int], Explanation] = {}
        self._early: dict[Key, int] = {}
        self._rejected: set[str] = set()

    @property
    def findings(self) -> list[Finding]:
        """Everything found so far: worst first, then cause before consequence, then by step."""
        return ranked((case.merged() for case in self._cases.values()), self._order)

    @property
    def newest_step(self) -> int:
        """The step of the newest row that was judged; -1 before the first."""
        return -1 if self._rows is None else int(self._rows["step"][-1])

    def feed(
        self,
        rows: Rows | None = None,
        events: Iterable[Event] = (),
        batches: Iterable[Mapping[str, Any]] = (),
    ) -> list[Finding]:
        """Judge what has arrived; returns the findings that are new or have changed."""
        changed: dict[Key, None] = {}
        for event in events:
            if why := fault(event):
                self._reject(event, why)
            if event.kind == "cause":
                self._explain(event, changed)
                continue
            # Names are needed from the first row on, whatever step their event carries.
            named = GuardedOptimizer.of(event)
            if named is not None and named.opt not in self._layers:
                self._learn_names(named)
            self._waiting.append(event)
        self._waiting.sort(key=lambda event: event.step)
        self._file(batches)
        self._judge_late(changed)
        if rows is not None:
            for start in range(0, len(rows), _BLOCK):
                self._take(rows[start : start + _BLOCK], changed, self.detectors)
        return self._reported(changed)

    def close(self) -> list[Finding]:
        """End of the run: judge events after the last row; returns new or changed findings.

        Only detectors that judge events alone are run. They get a row for the step of
        each such event, in which nothing was measured.
        """
        changed: dict[Key, None] = {}
        newest = -1 if self._rows is None else int(self._rows["step"].max())
        steps = sorted({event.step for event in self._waiting if event.step > newest})
        asked = [detector for detector in self.detectors if detector.judges_events]
        # A run leaves a handful; of very many the rest takes effect with the next of these.
        steps = steps if len(steps) <= _AFTER else [*steps[: _AFTER // 2], *steps[-_AFTER // 2 :]]
        if steps and asked:
            # A run that died before its first step has events only.
            last = _NOTHING if self._rows is None else self._rows[-1]
            self._take(_unmeasured(last, steps), changed, asked)
        return self._reported(changed)

    def judge_waiting(self) -> list[Finding]:
        """Judge events whose step has no row yet; returns the findings, which are new or renewed.

        Only detectors that ask for it are run. They judge the step again when its row comes.
        """
        changed: dict[Key, None] = {}
        asked = [d for d in self.detectors if d.judges_waiting]
        steps = sorted({event.step for event in self._waiting if event.step > self.newest_step})
        if steps and asked:
            last = _NOTHING if self._rows is None else self._rows[-1]
            rows = _unmeasured(last, steps)
            known = rows if self._rows is None else np.concatenate([self._rows[-HISTORY:], rows])
            events = (*self._events, *self._waiting)
            self._ask(asked, self._window(known, len(rows), events), changed, early=True)
        return self._reported(changed)

    def _reported(self, changed: Iterable[Key]) -> list[Finding]:
        return ranked((self._cases[key].merged() for key in changed), self._order)

    def _learn_names(self, named: GuardedOptimizer) -> None:
        self._layers[named.opt] = named.layers
        self._buffers[named.opt] = named.buffers

    def _explain(self, event: Event, changed: dict[Key, None]) -> None:
        """Attach a cause to the findings on its step, and keep it for later ones."""
        try:
            explanation = Explanation.of(event)
        except Exception as error:
            self._note(event.step, "reading a cause", error)
            return
        if explanation is None:
            return
        place = explanation.opt, explanation.step
        if explanation.beats(self._causes.get(place)):
            self._causes[place] = explanation
        for key, case in self._cases.items():
            if case.explain(explanation):
                changed[key] = None

    def _file(self, batches: Iterable[Mapping[str, Any]]) -> None:
        """Remember batches by step."""
        for batch in batches:
            step = int(batch.get("step", -1))
            known = self._batches.get(step)
            # Two optimizers record the same batch twice; keep the more complete record.
            if known is None or (batch.get("bad") and not known.get("bad")):
                self._batches[step] = batch
        if self._rows is not None and len(self._batches) > 2 * HISTORY:
            oldest = int(self._rows["step"][0])
            self._batches = {s: b for s, b in self._batches.items() if s >= oldest}

    def _take(self, rows: Rows, changed: dict[Key, None], detectors: Sequence[Detector]) -> None:
        """Judge a block of rows; events take effect with the first row that has their step."""
        start = 0
        for stop in self._boundaries(rows):
            if stop > start:
                self._judge(rows[start:stop], changed, detectors)
                start = stop
            self._take_events(int(rows["step"][stop]))
        if start < len(rows):
            self._judge(rows[start:], changed, detectors)

    def _take_events(self, step: int) -> None:
        """Events up to a step take effect."""
        while self._waiting and self._waiting[0].step <= step:
            event = self._waiting.pop(0)
            if (named := GuardedOptimizer.of(event)) is not None:
                self._learn_names(named)
            self._events.append(event)

    def _boundaries(self, rows: Rows) -> Iterator[int]:
        """Positions at which a waiting event takes effect, in order."""
        steps = np.maximum.accumulate(rows["step"])
        positions = np.searchsorted(steps, [event.step for event in self._waiting])
        return iter(sorted({int(p) for p in positions if p < len(rows)}))

    def _judge_late(self, changed: dict[Key, None]) -> None:
        """Judge events whose rows were judged without them, as if they had come before."""
        if self._rows is None or not self._waiting or self._waiting[0].step > self.newest_step:
            return
        first = int(np.argmax(self._rows["step"] >= self._waiting[0].step))
        self._take_events(self.newest_step)
        asked = [detector for detector in self.detectors if detector.judges_events]
        window = self._window(self._rows, len(self._rows) - first, self._events)
        self._ask(asked, window, changed, once=True)

    def _judge(self, rows: Rows, changed: dict[Key, None], detectors: Sequence[Detector]) -> None:
        old = self._rows
        self._rows = rows.copy() if old is None else np.concatenate([old[-HISTORY:], rows])
        self._rows.flags.writeable = False
        columns = set(rows.dtype.names or ())
        asked = [d for d in detectors if columns.issuperset(d.needs)]
        self._ask(asked, self._window(self._rows, len(rows), self._events), changed)

    def _window(self, rows: Rows, fresh: int, events: Iterable[Event]) -> Window:
        return Window(
            rows=rows,
            fresh=fresh,
            events=tuple(events),
            layers=self._layers,
            buffers=self._buffers,
            batches=self._batches,
            rank=self.rank,
        )

    def _ask(
        self,
        detectors: Iterable[Detector],
        window: Window,
        changed: dict[Key, None],
        *,
        early: bool = False,
        once: bool = False,
    ) -> None:
        """``early``: before the row is there; ``once``: rows that were judged before."""
        for detector in detectors:
            try:
                for finding in detector.scan(window):
                    key = finding.key
                    if once and key in self._cases and finding.step in self._cases[key].recent:
                        continue
                    case = self._cases.setdefault(key, Case())
                    if self._early.pop(key, None) == finding.step:
                        case.renew(finding)
                    else:
                        case.add(finding)
                    if early:
                        self._early[key] = finding.step
                    known = self._causes.get((key[1], finding.step))
                    if known is not None:
                        case.explain(known)
                    changed[key] = None
            except Exception as error:
                self._switch_off(detector, error)
            if self._pause is not None:
                self._pause()

    def _switch_off(self, detector: Detector, error: Exception) -> None:
        self.detectors.remove(detector)
        self._note(self.newest_step, f"detector {detector.code} {detector.name}", error)

    def _reject(self, event: Event, why: str) -> None:
        """An event that is no record of its kind: told once, and no detector sees it."""
        if event.kind not in self._rejected:
            self._rejected.add(event.kind)
            self._note(event.step, f"reading an event {event.kind}", RecordError(why))

    def _note(self, step: int, where: str, error: Exception) -> None:
        """Record a failure of holdfast itself; judging goes on."""
        known = self._rows is not None and "time" in (self._rows.dtype.names or ())
        self.errors.append(
            Event(
                time=float(self._rows["time"][-1]) if self._rows is not None and known else 0.0,
                rank=self.rank,
                step=step,
                kind=PartFailed.kind,
                data=PartFailed(where=where, error=f"{type(error).__name__}: {error}").to_dict(),
            )
        )


def _unmeasured(last: Any, steps: Sequence[int]) -> Rows:
    """Rows after the last one: they keep its learning rate, all else is unknown."""
    rows = np.repeat(np.asarray(last), len(steps))
    for name in rows.dtype.names or ():
        if rows.dtype[name].kind == "f" and name not in _GOES_ON:
            rows[name] = np.nan
    rows["step"] = steps
    return rows
