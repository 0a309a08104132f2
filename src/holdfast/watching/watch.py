"""``holdfast.watch``: the guard for your own loop, in a script or a notebook."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..boot import patches, session
from ..checkpoint.loader_pass import LoaderPass
from ..checkpoint.search import Resume, find
from ..checkpoint.store import FOLDER
from ..checkpoint.training_state import TrainingState
from ..config import Settings
from ..errors import UsageError
from ..guard.engine import Piece
from ..guard.finite_loss import frees_graph
from ..run import Run
from .checkpoints import LoopCheckpoints, gather
from .left_loop import settle_all
from .recorded_run import RecordedRun, with_folder

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
    quiet: bool = False,
    summary: bool = True,
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
            there is one, a path names a checkpoint or a folder of them; "anew" begins once more
            in the folder of a run that has none worth going on from.
        run_dir: folder of the run; a new one under ``runs/`` by default.
        name: name of the run; the script's name by default.
        settings: see ``holdfast.Settings``.
        say: where live lines and the summary go; standard error by default, below the cell in a
            notebook.
        quiet: no live lines and no summary.
        summary: tell at the end how the run went and where its report is.

    The watch ends with ``close()``, with its ``with`` block or with the process. In a notebook it
    shows itself as a card with its findings, at any time.

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
    settings = with_folder(settings, run_dir, quiet)
    training_state = gather(
        models, optimizers, scheduler=scheduler, scaler=scaler, ema=ema, state=state
    )
    return Watch(training_state, settings, say, resume, name, summary=summary)


class Watch(RecordedRun):
    """One guarded loop: ``for batch in watch(loader)``, ``watch.backward``, ``watch.step``."""

    def __init__(
        self,
        training_state: TrainingState,
        settings: Settings | None,
        say: Callable[[str], None] | None,
        resume: Resume = None,
        name: str | None = None,
        *,
        summary: bool = True,
    ) -> None:
        again = resume is not None and resume is not False
        super().__init__(settings, say, name, again=again, summary=summary)
        self._optimizers = training_state.optimizers
        self._scaler = training_state.scaler
        engine = self.engine
        settings = settings or engine.settings
        keep = settings.checkpoint
        if not self._own and settings.run.dir is not None and keep.dir is None:
            # A folder of the script's own is where it will look for them the next time.
            keep = replace(keep, dir=os.path.join(settings.run.dir, FOLDER))
        entry = find(resume, keep.dir, settings.run.dir, session.rank(), self._say)
        rank = session.rank()
        self._checkpoints = LoopCheckpoints(training_state, engine, keep, rank, self._say)
        if entry is not None:
            self._checkpoints.resume(entry)
        # We know what the run consists of and where it is in its data: the guard need not guess.
        engine.state_is(training_state, self._checkpoints.best)
        if self._own:
            self._undo.append(session.note_indices(engine))
        for optimizer in self._optimizers:
            if self._own:
                self._undo.append(optimizer.register_step_pre_hook(self._before_step).remove)
                after = optimizer.register_step_post_hook(lambda o, a, k: engine.step_ends(o))
                self._undo.append(after.remove)
            engine.made(optimizer, training_state.models.values())
            _watched[optimizer] = self
        self._opened()

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
        loader_pass = self._pass_begins(loader, fast)
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

    def _pass_begins(self, loader: Iterable[Any], fast: bool) -> LoaderPass | None:
        """Begin a loop; samples of a watched one may be replaced, because it trains."""
        loader_pass = None
        with patches.loop_begins(lambda: self.engine):
            self.engine.loader_begins(loader, True)
            try:
                loader_pass = self._checkpoints.begins(loader, fast=fast)
            finally:
                self.engine.loader_began(None if loader_pass is None else loader_pass.iterator)
        return loader_pass

    def _next(self, iterator: Iterator[B]) -> tuple[B, bool]:
        """The next batch, and whether it is one that was handed out before."""
        again = self.engine.fetch_begins(iterator)
        if again is not None:
            return again[0], True
        try:
            batch = next(iterator)
        except StopIteration:
            self.engine.fetch_fails(iterator)
            raise
        self.engine.fetched(iterator, batch)
        return batch, False

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return None
        return self.engine.step_begins(optimizer, args, kwargs)

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

    def graphs_are_wanted(self) -> None:
        """What autograd has built since the last step is no evaluation that forgot ``no_grad``."""
        self.engine.differentiates()

    def new_task(self) -> None:
        """Say that something else is learned from here on, so that the loss may jump."""
        self.engine.new_task()

    def run_step(
        self,
        function: Callable[[B], Tensor],
        batch: B,
        *,
        reduction: Literal["mean", "sum"] = "mean",
    ) -> Tensor:
        """The whole step at once: ``loss = function(batch)``, backward, step. Returns the loss.

        A batch that does not fit into memory is split: ``function`` is called with pieces of it,
        whose gradients add up to that of the batch, and so are the batches after it. Tensors and
        lists with an entry for each sample are cut, everything else goes into each piece.
        ``reduction`` says whether your loss is a mean over the samples or their sum.

            for batch in watch(loader):
                watch.run_step(lambda batch: loss_of(model(batch[0]), batch[1]), batch)
        """
        done: list[tuple[Tensor, int]] = []

        def compute(piece: Piece) -> None:
            if piece.begin == 0 and done:  # a try before this one has failed
                done.clear()
                self.drop_window()
            loss = function(piece.content)
            done.append((loss.detach(), piece.end - piece.begin))
            weight = piece.share if reduction == "mean" else 1.0
            if piece.last:
                self.backward(_with_value(loss, done, reduction), weight=weight)
            else:
                self.backward_piece(loss, weight=weight)

        self.engine.in_pieces([batch], compute)
        self.step()
        return _joined(done, reduction)

    def in_pieces(
        self,
        batches: Sequence[Any],
        compute: Callable[[Piece], None],
        undo: Callable[[str], None],
        *,
        local: bool = False,
    ) -> None:
        """What ``run_step`` does about memory, for a loop that counts its batches by itself.

        Calls ``compute`` with the last of ``batches``, or with pieces of it: forward and
        ``backward_piece``, for the last one ``backward``. Where memory runs out ``undo`` is called
        with the error and must clear the gradients of this step; then all ``batches`` come again,
        in smaller pieces. ``local``: no rank waits for another inside of ``compute``.
        """
        self.engine.in_pieces(batches, compute, undo, local=local)

    @property
    def fits(self) -> int:
        """How many samples are computed at once since memory ran out; 0: all of a batch.

        May be set, by a run that goes on.
        """
        return self.engine.fits

    @fits.setter
    def fits(self, samples: int) -> None:
        self.engine.fits = samples

    def save(self, metrics: Mapping[str, float] | None = None) -> Path | None:
        """Save the run as it is now, without waiting for the disk; where it will be.

        Call it between a ``backward`` or ``step`` and the next batch, or as the last thing of an
        epoch: one that is saved after its loop counts as over.
        """
        return self._checkpoints.save("asked", metrics)

    @property
    def saved(self) -> bool:
        """Whether no checkpoint is being written."""
        return self._checkpoints.saved

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
        self.engine.note_of_script(kind, data)

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

    def _ends(self, error: BaseException | None) -> None:
        for optimizer in self._optimizers:
            if _watched.get(optimizer) is self:
                del _watched[optimizer]
        self._checkpoints.close(finished=error is None)
        if error is not None:
            self.engine.save_last_state(type(error).__name__)
        self.engine.state_is(None)


def _joined(done: Sequence[tuple[Tensor, int]], reduction: str) -> Tensor:
    """The loss of a batch, from those of its pieces and their samples."""
    if len(done) == 1:
        return done[0][0]
    total = sum(count for _, count in done)
    losses = torch.stack([loss * (count / total) for loss, count in done])
    return losses.sum() if reduction == "mean" else torch.stack([loss for loss, _ in done]).sum()


def _with_value(loss: Tensor, done: Sequence[tuple[Tensor, int]], reduction: str) -> Tensor:
    """The loss of the last piece with the value of the whole batch, for the record."""
    if len(done) == 1:
        return loss
    return loss + (_joined(done, reduction) - loss).detach()
