"""The guard of ``holdfast run`` in a process that runs already, for as long as a framework trains.

A framework's loop is not ours to write: batches are fetched, losses sent back and optimizers
stepped somewhere inside of it. So the same patches of torch are installed as under
``holdfast run``, and removed at the end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from torch import nn
from torch.optim import Optimizer

from ..boot import session
from ..config import Settings
from ..torch_version import check_torch
from .left_loop import settle_all
from .recorded_run import RecordedRun, with_folder

_open: list[WatchedProcess] = []


class WatchedProcess(RecordedRun):
    """A guarded training somewhere in this process, from here until ``close``."""

    def __init__(
        self,
        settings: Settings | None,
        say: Callable[[str], None] | None,
        name: str | None,
    ) -> None:
        super().__init__(settings, say, name)
        if self._own:
            session.attach(self.engine)
            self._undo.append(session.detach)
            _open.append(self)
        self._opened()

    def knows(self, optimizers: Iterable[object], models: Iterable[nn.Module]) -> None:
        """Optimizers that were made before; those of other kinds than torch's are ignored."""
        known = list(models)
        for given in optimizers:
            # Wrappers of frameworks hold torch's own under this name.
            optimizer = getattr(given, "optimizer", given)
            if isinstance(optimizer, Optimizer):
                self.engine.made(optimizer, known)

    def ended_by(self, error: BaseException) -> None:
        """End the run with the exception that left it, which somebody may still catch."""
        self._close(error)

    def _ends(self, error: BaseException | None) -> None:
        if self in _open:
            _open.remove(self)
        if self._own and error is not None:
            self.engine.save_last_state(type(error).__name__)


def watch_process(
    *,
    run_dir: str | os.PathLike[str] | None = None,
    name: str | None = None,
    settings: Settings | None = None,
    say: Callable[[str], None] | None = None,
    quiet: bool = False,
) -> WatchedProcess:
    """Guard and record whatever trains in this process; ends one that was left open before.

    Arguments are those of ``holdfast.watch``. Under ``holdfast run`` the run that is already being
    recorded is used.
    """
    check_torch()
    settle_all()  # a cell before this one may have ended with an exception
    for former in list(_open):
        former.close()
    return WatchedProcess(with_folder(settings, run_dir, quiet), say, name)
