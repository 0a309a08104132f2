"""An exception that left a watched loop: it becomes a crash once it has ended the script.

Whether somebody further out catches it shows only later: when the process ends, or in a notebook
when the cell has. Until then plain data is kept, so that neither the frames of the exception nor
the model stay alive: a script may catch out of memory and try a smaller batch.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
from collections.abc import Callable, Sequence

from ..detectors import Detector
from ..detectors.judge import Judge
from ..guard.last_words import LastWords
from ..harmless import visible_line
from ..report import make_page
from ..report.live import Live
from ..run import LaneReader, LaneWriter, Run, rank_of

_open: list[LoopException] = []


class LoopException:
    """What is known of the exception, and where it belongs.

    Args:
        words: the exception.
        place: finds the run folder and the lane, and makes them where there was no step yet.
        detectors: those of the run.
        say: where lines go.
        summed_up: whether the summary comes after it.
    """

    def __init__(
        self,
        words: LastWords,
        place: Callable[[], tuple[Run, str]],
        detectors: Sequence[type[Detector] | Detector],
        say: Callable[[str], None],
        *,
        summed_up: bool = False,
    ) -> None:
        self._words, self._place, self._detectors, self._say = words, place, detectors, say
        self._summed_up = summed_up
        _open.append(self)

    def settle(self) -> None:
        """Record the crash, if python shows this exception as the one that ended the script."""
        error = getattr(sys, "last_value", None)
        if error is None or not self._words.is_of(error):
            return
        _open.remove(self)
        with contextlib.suppress(KeyboardInterrupt):
            try:
                self._record(self._words.completed(error))
            except Exception as failure:
                text = " ".join(str(failure).split())
                self._say(f"holdfast: could not record how the loop ended: {visible_line(text)}")

    def _record(self, words: LastWords) -> None:
        run, lane = self._place()
        rank = rank_of(lane)
        writer = LaneWriter(run, lane)
        writer.write_events(words.of_rank(rank))
        writer.flush()
        seen = LaneReader(run, lane).read(tables=("steps",))
        judge = Judge(self._detectors, rank)
        judge.feed(seen.steps, seen.events, seen.batches)
        judge.close()
        known = {finding.key for finding in seen.findings}
        found = [finding for finding in judge.findings if finding.key not in known]
        writer.write_findings(found)
        writer.close()
        run.write_traceback(lane, words.traceback)
        if rank == 0:
            run.update_meta(status="finished", exit_code=1)
            make_page(run, self._say)
        Live(self._say, summed_up=self._summed_up).show(found)


def settle_all() -> None:
    """Ask again what became of every exception that left a loop."""
    for left in list(_open):
        left.settle()


atexit.register(settle_all)
