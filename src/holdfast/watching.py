"""``holdfast.watch``: the same guard in a loop of your own, a script's or a notebook's."""

from __future__ import annotations

import atexit
import os
import sys
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter

from . import config
from .boot import session
from .config import Settings
from .detectors import ALL, load_plugins
from .errors import UsageError
from .guard.engine import Engine
from .guard.recorder import Recorder
from .launch import start_run
from .report import end_summary, make_page
from .run import LaneReader, Run
from .scribe import Scribe, ScribeThread
from .types import Finding

B = TypeVar("B")

_watched: weakref.WeakKeyDictionary[Optimizer, Watch] = weakref.WeakKeyDictionary()


def watch(
    model: nn.Module | Sequence[nn.Module],
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    scaler: Any = None,
    run_dir: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    say: Callable[[str], None] | None = None,
) -> Watch:
    """Guard an ordinary training loop.

    Args:
        model: the model, or several; gives the layers their names.
        optimizer: the optimizer, or several. ``optimizer.step()`` is guarded from here on,
            whether called through the watch or directly.
        scaler: your ``GradScaler``, if you use one.
        run_dir: folder of the run; a new one under ``runs/`` by default.
        settings: see ``holdfast.Settings``.
        say: where live lines go; standard error by default.

    Calling it again for the same optimizer (a notebook cell run twice) ends the former watch.
    Under ``holdfast run`` the run that is already being recorded is used.
    """
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
    settings = settings or config.Settings()
    if run_dir is not None:
        settings = replace(settings, run=replace(settings.run, dir=os.fspath(run_dir)))
    return Watch(models, optimizers, scaler, settings, say or _to_stderr)


class Watch:
    """One guarded loop: ``for batch in watch(loader)``, ``watch.backward``, ``watch.step``."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[Optimizer],
        scaler: Any,
        settings: Settings,
        say: Callable[[str], None],
    ) -> None:
        self._optimizers = list(optimizers)
        self._scaler = scaler
        self._say = say
        self._run: Run | None = None
        self._thread: ScribeThread | None = None
        self._closed = False
        self._undo: list[Callable[[], None]] = []
        engine = session.current()
        self._own = engine is None
        if engine is None:
            engine = Engine(settings, lambda: self._record(settings, say))
            for optimizer in optimizers:
                self._undo.append(optimizer.register_step_pre_hook(engine.step_begins).remove)
                after = optimizer.register_step_post_hook(lambda o, a, k: engine.step_ends(o))
                self._undo.append(after.remove)
        self.engine = engine
        for optimizer in optimizers:
            engine.made(optimizer, models)
            _watched[optimizer] = self
        atexit.register(self.close)

    def __call__(self, loader: Iterable[B]) -> Iterator[B]:
        """Iterate over batches, counting the time they are waited for."""
        iterator = iter(loader)
        if not self._own and isinstance(iterator, _BaseDataLoaderIter):
            yield from iterator  # its own __next__ tells the engine already
            return
        while True:
            expected = self.engine.fetch_begins(iterator)
            again = self.engine.hands_out_again(iterator)
            if again is not None:
                yield again[0]
                continue
            try:
                batch = next(iterator)
            except StopIteration:
                self.engine.fetch_fails(iterator)
                return
            self.engine.fetched(iterator, expected, batch)
            yield batch

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """``loss.backward()``, scaled when a scaler was given."""
        scaled = loss if self._scaler is None else self._scaler.scale(loss)
        if not self._own:
            scaled.backward(**kwargs)
            return
        self.engine.backward_begins(loss)
        try:
            scaled.backward(**kwargs)
        finally:
            self.engine.backward_ends()

    def step(self, closure: Callable[[], Any] | None = None, *, zero_grad: bool = True) -> None:
        """Step every optimizer, leave poisoned steps out, and clear the gradients."""
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
            self._scaler.update()
        if zero_grad:
            for optimizer in self._optimizers:
                optimizer.zero_grad()

    def run_step(self, function: Callable[[B], Tensor], batch: B) -> Tensor:
        """The whole step at once: ``loss = function(batch)``, backward, step. Returns the loss."""
        loss = function(batch)
        self.backward(loss)
        self.step()
        return loss.detach()

    @property
    def run(self) -> Run | None:
        """The run folder, once the first backward pass has opened it."""
        recorder = self.engine.journal.recorder
        return None if recorder is None else recorder.run

    @property
    def skipped(self) -> int:
        """Steps left out so far, as far as is known on the host."""
        return self.engine.journal.skipped

    @property
    def findings(self) -> list[Finding]:
        """What has been found so far."""
        run = self.run
        if run is None:
            return []
        return [f for lane in run.lanes() for f in LaneReader(run, lane).findings()]

    def report(self) -> str:
        """The summary a finished run prints; may be asked for at any time after ``close``."""
        return "" if self.run is None else end_summary(self.run)

    def close(self) -> None:
        """End the watch: hooks are taken out, the last rows written. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        atexit.unregister(self.close)
        while self._undo:
            self._undo.pop()()
        for optimizer in self._optimizers:
            if _watched.get(optimizer) is self:
                del _watched[optimizer]
        if self._own:
            self.engine.close()
            if self._thread is not None:
                self._thread.close()
            if self.run is not None and session.rank() == 0:
                self.run.update_meta(status="finished", exit_code=0)
                make_page(self.run, self._say)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _record(self, settings: Settings, say: Callable[[str], None]) -> Recorder:
        script = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "session"
        run = start_run(settings, script or "session", sys.argv)
        owner = uuid.uuid4().hex
        recorder = Recorder(run, session.rank(), os.getpid(), owner, settings.run.ring_mib << 20)
        detectors = (*ALL, *load_plugins(os.environ, ALL).detectors)
        self._thread = ScribeThread(Scribe(run, owner, settings, detectors, say))
        return recorder


def _to_stderr(line: str) -> None:
    """Through ``sys.stderr``, which a notebook shows below the cell."""
    print(line, file=sys.stderr, flush=True)
