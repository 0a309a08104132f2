"""``holdfast.watch``: the guard for your own loop, in a script or a notebook."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter

from .. import config
from ..boot import session
from ..checkpoint.search import Resume, find
from ..checkpoint.store import FOLDER
from ..checkpoint.training_state import TrainingState
from ..config import Settings
from ..detectors import ALL, Detector, load_plugins
from ..errors import HoldfastError, RunFolderError, UsageError
from ..guard.engine import Engine
from ..guard.finite_loss import frees_graph
from ..launcher.drain import Drain, DrainThread
from ..launcher.start import start_run
from ..launcher.tracking import Follower
from ..report import end_summary, make_page, saved_words
from ..report.ending import LEFT
from ..run import LaneReader, ProcessMark, Recorder, Run
from ..run.life import PROCESS
from ..types import Finding
from .checkpoints import LoopCheckpoints, gather
from .left_loop import LeftLoop, settle_all

B = TypeVar("B")

_watched: weakref.WeakKeyDictionary[Optimizer, Watch] = weakref.WeakKeyDictionary()


def watch(
    model: nn.Module | Sequence[nn.Module],
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    scheduler: Any = None,
    scaler: Any = None,
    ema: Any = None,
    state: Mapping[str, Any] | None = None,
    resume: Resume = None,
    run_dir: str | os.PathLike[str] | None = None,
    name: str | None = None,
    settings: Settings | None = None,
    say: Callable[[str], None] | None = None,
) -> Watch:
    """Guard an ordinary training loop, save checkpoints, and resume from them.

    Args:
        model: the model, or several; gives the layers their names.
        optimizer: the optimizer, or several. ``optimizer.step()`` is guarded from here on,
            whether called through the watch or directly.
        scheduler: your learning-rate schedule, or several. You step it; its state is saved.
        scaler: your ``GradScaler``, if you use one.
        ema: an average of the model, or several by name; saved.
        state: whatever else belongs to the run, by name: objects with ``state_dict`` and
            ``load_state_dict``, or a ``torch.Generator``.
        resume: True continues from the newest good checkpoint of ``run_dir``, "auto" does so if
            there is one, a path names a checkpoint or a folder of them.
        run_dir: folder of the run; a new one under ``runs/`` by default.
        name: name of the run; the script's name by default.
        settings: see ``holdfast.Settings``.
        say: where live lines go; standard error by default.

    Calling it again for the same optimizer (a notebook cell run twice) ends the former watch.
    Under ``holdfast run`` the run that is already being recorded is used.
    """
    settle_all()  # a cell before this one may have ended with an exception
    models = [model] if isinstance(model, nn.Module) else list(model)
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    for given in optimizers:
        if not isinstance(given, Optimizer):
            raise UsageError(
                f"holdfast.watch needs a torch.optim.Optimizer, got {type(given).__name__}; "
                "optimizers of other kinds cannot be guarded"
            )
        former = _watched.get(given)
        if former is not None:
            former.close()
    if run_dir is not None:
        settings = settings or config.Settings()
        settings = replace(settings, run=replace(settings.run, dir=os.fspath(run_dir)))
    training_state = gather(
        models, optimizers, scheduler=scheduler, scaler=scaler, ema=ema, state=state
    )
    return Watch(training_state, settings, say or _to_stderr, resume, name)


class Watch:
    """One guarded loop: ``for batch in watch(loader)``, ``watch.backward``, ``watch.step``."""

    def __init__(
        self,
        training_state: TrainingState,
        settings: Settings | None,
        say: Callable[[str], None],
        resume: Resume = None,
        name: str | None = None,
    ) -> None:
        self._name = name
        self._optimizers = training_state.optimizers
        self._scaler = training_state.scaler
        self._say = say
        self._thread: DrainThread | None = None
        self._follower: Follower | None = None
        self._closed = False
        # An exception of before this loop is none of it: a notebook keeps the last one.
        self._earlier = id(getattr(sys, "last_value", None))
        self._undo: list[Callable[[], None]] = []
        engine = session.current()
        self._own = engine is None
        settings = settings or (engine.settings if engine is not None else config.Settings())
        keep = settings.checkpoint
        if not self._own and settings.run.dir is not None and keep.dir is None:
            # A folder of the script's own is where it will look for them the next time.
            keep = replace(keep, dir=os.path.join(settings.run.dir, FOLDER))
        entry = find(resume, keep.dir, settings.run.dir, session.rank(), say)
        if engine is None:
            again = resume is not None and resume is not False
            engine = Engine(settings, lambda: self._record(settings, say, again))
        self.engine = engine
        self._checkpoints = LoopCheckpoints(training_state, engine, keep, session.rank(), say)
        if entry is not None:
            self._checkpoints.resume(entry)
        # We know what the run consists of and where it is in its data: the guard need not guess.
        engine.state_is(training_state, self._checkpoints.best)
        for optimizer in self._optimizers:
            if self._own:
                self._undo.append(optimizer.register_step_pre_hook(engine.step_begins).remove)
                after = optimizer.register_step_post_hook(lambda o, a, k: engine.step_ends(o))
                self._undo.append(after.remove)
            engine.made(optimizer, training_state.models.values())
            _watched[optimizer] = self
        atexit.register(self.close)

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers from 0 to ``count``; a resumed run begins with the epoch it was in."""
        return self._checkpoints.position.epochs(count)

    def __call__(self, loader: Iterable[B], *, fast: bool = False) -> Iterator[B]:
        """Iterate over batches, counting the time they are waited for.

        A resumed run goes on with the batch that was next. With ``fast`` samples are skipped
        without loading them, also where workers load them: exact only if their transforms draw
        no random numbers.
        """
        if self._own and hasattr(loader, "drew"):
            loader.drew = self.engine.drew  # type: ignore[attr-defined]
        loader_pass = self._checkpoints.begins(loader, fast=fast)
        if loader_pass is None:
            return
        iterator = loader_pass.iterator
        self.engine.passes_over(loader)
        reported = not self._own and isinstance(iterator, _BaseDataLoaderIter)
        try:
            while True:
                self._checkpoints.between()
                try:
                    # The iterator's own __next__ informs an engine under `holdfast run`.
                    batch, again = (next(iterator), False) if reported else self._next(iterator)
                except StopIteration:
                    return
                if not again:
                    loader_pass.handed_out()
                yield batch
        finally:
            self._checkpoints.position.ends(loader_pass)

    def _next(self, iterator: Iterator[B]) -> tuple[B, bool]:
        """The next batch, and whether it is one that was handed out before."""
        expected = self.engine.fetch_begins(iterator)
        again = self.engine.hands_out_again(iterator)
        if again is not None:
            return again[0], True
        try:
            batch = next(iterator)
        except StopIteration:
            self.engine.fetch_fails(iterator)
            raise
        self.engine.fetched(iterator, expected, batch)
        return batch, False

    def backward(self, loss: Tensor, *, weight: float = 1.0, **kwargs: Any) -> None:
        """``loss.backward()``, scaled when a scaler was given.

        ``weight`` is what the gradients of this pass count in their window (1/4 where four make
        a step); the loss is recorded as it is.
        """
        self._checkpoints.saw_loss(loss)
        scaled = self._scaled(loss, weight)
        if not self._own:
            if scaled is not loss:
                self.engine.scaled(loss, scaled)
            scaled.backward(**kwargs)
            return
        self.engine.backward_begins(loss)
        freed = False
        try:
            scaled.backward(**kwargs)
            freed = frees_graph(**kwargs)
        finally:
            self.engine.backward_ends(freed=freed)

    def backward_piece(self, loss: Tensor, *, weight: float) -> None:
        """The same for a piece of a batch that is not its last.

        A batch that does not fit into memory is taken in pieces, whose gradients add up. The run
        is told of the batch with its last piece, by ``backward``.
        """
        self._scaled(loss, weight).backward()

    def _scaled(self, loss: Tensor, weight: float) -> Tensor:
        if self._own and self._scaler is not None:
            self.engine.scaler_used(self._scaler)
        scaled = loss if weight == 1.0 else loss * weight
        return scaled if self._scaler is None else self._scaler.scale(scaled)

    def drop_window(self) -> None:
        """Forget the backward passes since the last step, and clear their gradients."""
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        self._checkpoints.passes = 0
        self.engine.window_dropped()

    def step(self, closure: Callable[[], Any] | None = None, *, zero_grad: bool = True) -> None:
        """Step every optimizer, skip bad steps, and clear the gradients."""
        for optimizer in self._optimizers:
            if self._scaler is None:
                optimizer.step() if closure is None else optimizer.step(closure)
            else:
                if self._own:
                    self.engine.scaler_begins(self._scaler)
                self._scaler.step(optimizer)
                if self._own:
                    self.engine.scaler_ends(optimizer)
        if self._scaler is not None:
            # A batch that is computed once more says nothing new about the scale.
            again = self._own and self.engine.replaying
            self._scaler.update(self._scaler.get_scale() if again else None)
            if self._own and not again:
                self.engine.scaler_updated(self._scaler)
        if zero_grad:
            for optimizer in self._optimizers:
                optimizer.zero_grad()
        self._checkpoints.stepped()

    def settled(self) -> None:
        """Say that what was done since the step is meant; call it before the next batch.

        For loops that change buffers (a moving average, fast weights) or take gradients between
        two steps: a step that is skipped later puts buffers back to what they are now.
        """
        self.engine.settled()

    def new_task(self) -> None:
        """Say that something else is learned from here on, so that the loss may jump."""
        self.engine.new_task()

    def run_step(self, function: Callable[[B], Tensor], batch: B) -> Tensor:
        """The whole step at once: ``loss = function(batch)``, backward, step. Returns the loss."""
        loss = function(batch)
        self.backward(loss)
        self.step()
        return loss.detach()

    def save(self, metrics: Mapping[str, float] | None = None) -> Path | None:
        """Save the run as it is now, without waiting for the disk; where it will be.

        Call it between a ``backward`` or ``step`` and the next batch, or as the last thing of an
        epoch: one that is saved after its loop counts as over.
        """
        return self._checkpoints.save("asked", metrics)

    def await_saved(self) -> None:
        """Wait for the checkpoints that are being written; for who reads them after training."""
        self._checkpoints.await_saved()

    def restore_best(self, why: str) -> str:
        """Go back to the best state by validation, with a lower learning rate.

        For a loop whose validation has become much worse; call it between two steps. At most
        ``rollback.best`` times, by the factor ``rollback.lr``. Returns why it was not done; empty
        if it was.
        """
        return self.engine.restore_best(why)

    def note(self, kind: str, data: Mapping[str, Any]) -> None:
        """Record a custom event in the run: detectors and readers see it."""
        self.engine.note(kind, self.engine.steps, data)

    @property
    def passes(self) -> int:
        """Backward passes since the last step: where the loop is in an accumulation window."""
        return self._checkpoints.passes

    @property
    def batches(self) -> int:
        """Batches handed out in this pass over the loader, those before a resume included."""
        return self._checkpoints.position.batches

    def open(self) -> Run | None:
        """Open the run folder now, not with the first backward pass; may raise an error."""
        return self.engine.open()

    @property
    def latest(self) -> Mapping[str, float]:
        """The row of the newest step whose numbers are on the host; its columns by name."""
        return self.engine.latest

    def each_row(self, listener: Callable[[Mapping[str, float]], None]) -> None:
        """Call somebody with every row once its numbers are on the host; it must be quick."""
        self.engine.each_row(listener)

    def await_rows(self) -> None:
        """Wait for the rows that are on their way from a device; for the end of a run."""
        self.engine.await_rows()

    @property
    def replaying(self) -> bool:
        """Whether the current batch was fed before, so that an investigation can trace it.

        ``step`` skips its update: nothing that counts steps should count it.
        """
        return self.engine.replaying

    @property
    def last_replay(self) -> bool:
        """Whether it is the last one of its kind, after which ``step`` is due."""
        return self.engine.last_replay

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
        """The summary a finished run prints; may be asked for at any time after ``close``."""
        settle_all()
        return "" if self.run is None else end_summary(self.run)

    def close(self) -> None:
        """End the watch: remove hooks, write the last rows. Safe to call twice."""
        error = getattr(sys, "last_value", None)
        self._close(None if id(error) == self._earlier else error)

    def _close(self, error: BaseException | None) -> None:
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        while self._undo:
            self._undo.pop()()
        for optimizer in self._optimizers:
            if _watched.get(optimizer) is self:
                del _watched[optimizer]
        self._checkpoints.close(finished=error is None)
        if error is not None:
            self.engine.save_last_state(type(error).__name__)
        self.engine.state_is(None)
        if self._own:
            code = self._end_engine(error)
            if self._thread is not None:
                self._thread.close()
            if self.run is not None and session.rank() == 0:
                with contextlib.suppress(RunFolderError):  # a full disk: the next line says so
                    self.run.update_meta(status="finished", exit_code=code)
                make_page(self.run, self._say)
                if error is not None and (left := saved_words(self.run)):
                    self._say(left)  # nobody else prints a summary here
            if self._follower is not None:
                self._follower.end()

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
                self.engine.note(LEFT, self.engine.steps, left.place)
            self.engine.close()
        if left is not None:
            LeftLoop(left, self._lane(), _detectors(), self._say)
        return code

    def _lane(self) -> Callable[[], tuple[Run, str]]:
        """Where this loop is recorded; makes a run where it had none, without holding the loop."""
        run, lane, settings, script = self.run, self.engine.lane, self.engine.settings, self._script

        def found() -> tuple[Run, str]:
            return run or start_run(settings, script, sys.argv), lane or f"r{session.rank()}"

        return found

    @property
    def _script(self) -> str:
        return self._name or (os.path.basename(sys.argv[0]) if sys.argv else "") or "session"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._close(error)

    def _record(self, settings: Settings, say: Callable[[str], None], again: bool) -> Recorder:
        try:
            run = _former(settings) if again else None
            run = run or start_run(settings, self._script, sys.argv)
        except RunFolderError as error:
            say(f"holdfast: this run cannot be recorded or saved, but it is guarded: {error}")
            raise
        owner = uuid.uuid4().hex
        recorder = Recorder(run, session.rank(), os.getpid(), owner, settings.run.ring_mib << 20)
        self._thread = DrainThread(Drain(run, owner, settings, _detectors(), say))
        if session.rank() == 0:
            self._follower = Follower.start(run.path, settings, say)
        return recorder


def _detectors() -> Sequence[type[Detector]]:
    return (*ALL, *load_plugins(os.environ, ALL).detectors)


def _to_stderr(line: str) -> None:
    """Through ``sys.stderr``, which a notebook shows below the cell."""
    with contextlib.suppress(OSError):  # a log on a full disk must not end the training
        print(line, file=sys.stderr, flush=True)


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
