"""A run that is recorded by the process that trains: its folder, its findings, its end.

Under ``holdfast run`` a parent process does this. Here a thread moves rows into the run folder and
judges them, and the end of the run, its page and its summary are made when it is closed: by the
user, by the end of a ``with`` block or by the end of the process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from .. import config
from ..boot import session
from ..config import Settings
from ..detectors import ALL, Detector, load_plugins
from ..detectors.options import configured, with_options
from ..errors import HoldfastError, RunFolderError
from ..guard.engine import Engine
from ..harmless import visible_line
from ..launcher import start
from ..launcher.drain import Drain
from ..launcher.drain_thread import DrainThread
from ..launcher.start import start_run
from ..launcher.tracking import Follower
from ..report import card_html, end_summary, make_page, saved_words
from ..run import LaneReader, ProcessMark, Recorder, Run
from ..run.life import PROCESS
from ..types import Finding
from .left_loop import LoopException, settle_all
from .notebook import has_cells, in_notebook, is_used_by, notebook_name, when_cells_end


class RecordedRun:
    """A guarded training of this process and its record.

    Under ``holdfast run`` it is the run that is being recorded already, which its parent ends.

    Args:
        settings: of the run; those of ``holdfast run`` there.
        say: where lines go; standard error by default, below the cell of a notebook.
        name: name of the run; the script's or the notebook's by default.
        again: whether it goes on in its folder, in another lane.
        summary: whether its end is told; a quiet run is never told of.
    """

    def __init__(
        self,
        settings: Settings | None,
        say: Callable[[str], None] | None,
        name: str | None,
        *,
        again: bool = False,
        summary: bool = True,
    ) -> None:
        engine = session.current()
        self._own = engine is None
        settings = settings or (config.Settings() if engine is None else engine.settings)
        self._say = say or to_person
        self._name = name
        self._summary = summary and not settings.run.quiet
        self._thread: DrainThread | None = None
        self._follower: Follower | None = None
        self._alone = self._closed = self._left = False
        # An exception of before this run is none of it: a notebook keeps the last one.
        self._earlier = id(getattr(sys, "last_value", None))
        self._undo: list[Callable[[], None]] = []
        if engine is None:
            if settings.detectors.options:  # a typo is told at once
                settings = with_options(settings, _detectors())
            engine = Engine(settings, lambda: self._record(settings, again))
        self.engine = engine

    @property
    def run(self) -> Run | None:
        """The run folder, once the first backward pass has opened it."""
        return self.engine.run

    @property
    def skipped(self) -> int:
        """Steps skipped so far, as far as the host knows."""
        return self.engine.skipped

    @property
    def findings(self) -> list[Finding]:
        """Findings so far."""
        settle_all()
        run = self.run
        if run is None:
            return []
        return [f for lane in run.lanes() for f in LaneReader(run, lane).findings()]

    def report(self) -> str:
        """The summary a finished run prints; may be asked for at any time."""
        settle_all()
        return "" if self.run is None else end_summary(self.run)

    def _repr_html_(self) -> str:
        """Card that a notebook shows: how the run stands, its findings, where the report is."""
        settle_all()
        return card_html(self.run)

    def close(self) -> None:
        """End the run: remove hooks, write the last rows, tell how it went. Safe to call twice."""
        error = getattr(sys, "last_value", None)
        self._close(None if id(error) == self._earlier else error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._close(error)

    # ------------------------------------------------------------------ its end

    def _opened(self) -> None:
        """Everything is in place: the end of the process is its end, too."""
        atexit.register(self.close)
        self._steps_before = self.engine.steps
        self._undo.append(when_cells_end(self._cell_ended))

    def _cell_ended(self, error: BaseException | None) -> None:
        """A cell of a notebook is over; an exception in the loop has ended the run.

        Not an interrupt: people look around and go on with the same loop.
        """
        went_on = self.engine.steps > self._steps_before
        self._steps_before = self.engine.steps
        of_loop = error is not None and (went_on or is_used_by(self, error))
        if not of_loop:  # what other cells end with is none of the loop, nor what it got over
            if error is not None or went_on:
                self._earlier = id(getattr(sys, "last_value", None))
        elif isinstance(error, Exception):
            sys.last_value = error  # IPython has shown it
            self._close(error)

    def _ends(self, error: BaseException | None) -> None:
        """The run ends: what those who build on this have to do before the last rows."""

    def _close(self, error: BaseException | None) -> None:
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        while self._undo:
            self._undo.pop()()
        self._ends(error)
        if self._own:
            code = self._end_engine(error)
            if self._thread is not None:
                self._thread.close()
            if self.run is not None and (self._alone or session.rank() == 0):
                self._note_end(self.run, code)
                if not (self._left and self._reported_with_cell(self.run, error)):
                    self._tell_end(self.run, error)
            if self._follower is not None:
                self._follower.end()

    def _note_end(self, run: Run, code: int) -> None:
        with contextlib.suppress(RunFolderError):  # a full disk: the next line says so
            run.update_meta(status="finished", exit_code=code)
        make_page(run, self._say)

    def _reported_with_cell(self, run: Run, error: BaseException | None) -> bool:
        """Tell the end with that of the cell, which shows whether the exception was caught."""

        def ended(_: BaseException | None) -> None:
            stop()
            settle_all()
            self._tell_end(run, error)

        stop = when_cells_end(ended)
        return has_cells()

    def _tell_end(self, run: Run, error: BaseException | None) -> None:
        try:
            # Nobody else prints a summary here, nor where the last state is.
            reported = end_summary(run).rstrip() if self._summary else ""
            if reported or (error is not None and (reported := saved_words(run))):
                self._say(reported)
        except Exception as failure:  # the script goes on after its loop
            why = visible_line(" ".join(str(failure).split()))
            self._say(f"holdfast: could not sum up the run: {why}")

    def _end_engine(self, error: BaseException | None) -> int:
        """Write the last records; the exit code of the loop, as far as it is known here."""
        code = 0 if error is None else 1
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        left = None
        if error is None:
            self.engine.close()
        elif isinstance(error, SystemExit) or error is getattr(sys, "last_value", None):
            self.engine.end(error)
            if self.run is None:  # nothing was recorded
                self.engine.close()
        else:
            # Somebody further out may catch it. Errors of ours end a run, whoever tells of them.
            code = int(isinstance(error, HoldfastError))
            left = self.engine.last_words(error)
            if self.run is not None:
                place = left.left
                self.engine.note(self.engine.steps, place)
            self.engine.close()
        if left is not None:
            self._left = True
            later = self._summary and has_cells()
            settings = self.engine.settings
            rollback_decision = configured(_detectors(), settings.detectors.options)
            LoopException(left, self._lane(), rollback_decision, self._say, summed_up=later)
        return code

    def _lane(self) -> Callable[[], tuple[Run, str]]:
        """Where this loop is recorded; makes a run where it had none, without holding the loop."""
        run, lane, settings, script = self.run, self.engine.lane, self.engine.settings, self._script

        def found() -> tuple[Run, str]:
            return run or _started(settings, script), lane or f"r{session.rank()}"

        return found

    # ------------------------------------------------------------------ its record

    @property
    def _script(self) -> str:
        return _script_name(self._name)

    def _record(self, settings: Settings, again: bool) -> Recorder:
        try:
            former = _former(settings) if again else None
            run = former or _started(settings, self._script)
            # A rank whose launcher names no run to share has one of its own.
            self._alone = former is None and "launch" not in run.meta
        except RunFolderError as error:
            why = visible_line(str(error))
            self._say(f"holdfast: this run cannot be recorded or saved, but it is guarded: {why}")
            raise
        owner = uuid.uuid4().hex
        recorder = Recorder(run, session.rank(), os.getpid(), owner, settings.run.ring_mib << 20)
        summed_up = self._summary and (self._alone or session.rank() == 0)
        drain = Drain(run, owner, settings, _detectors(), self._say, summed_up=summed_up)
        self._thread = DrainThread(drain)
        if session.rank() == 0:
            self._follower = Follower.start(run.path, settings, self._say)
        return recorder


def former_life(settings: Settings, name: str | None) -> Path | None:
    """The folder in which this launch was recorded before its ranks were started again."""
    return start.former_life(settings, _script_name(name))


def _started(settings: Settings, script: str) -> Run:
    # What a kernel was started with says nothing about the notebook.
    command = [script] if in_notebook() else sys.argv
    return start_run(settings, script, command, source="" if in_notebook() else None)


def _script_name(name: str | None) -> str:
    return (
        name or notebook_name() or (os.path.basename(sys.argv[0]) if sys.argv else "") or "session"
    )


def with_folder(
    settings: Settings | None, run_dir: str | os.PathLike[str] | None, quiet: bool
) -> Settings | None:
    """The settings with what was given beside them; None where nothing was given at all."""
    if run_dir is None and not quiet:
        return settings
    settings = settings or config.Settings()
    run = settings.run
    folder = run.dir if run_dir is None else os.fspath(run_dir)
    return replace(settings, run=replace(run, dir=folder, quiet=run.quiet or quiet))


def to_person(line: str) -> None:
    """To standard error; in a notebook, which shows that as an error, to standard output."""
    with contextlib.suppress(OSError):  # a log on a full disk must not end the training
        print(line, file=sys.stdout if in_notebook() else sys.stderr, flush=True)


def _detectors() -> Sequence[type[Detector]]:
    return (*ALL, *load_plugins(os.environ, ALL).detectors)


def _former(settings: Settings) -> Run | None:
    """The run that a resumed one goes on in: another lane of the same folder."""
    if settings.run.dir is None:
        return None
    try:
        run = Run.open(settings.run.dir)
        if session.rank() == 0:
            now = {"status": "running", PROCESS: ProcessMark.of().to_dict()}
            run.update_meta(**now, exit_code=None)
    except RunFolderError:
        return None
    return run
