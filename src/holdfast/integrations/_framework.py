"""What the forms for training frameworks share: when the guard begins and ends, what it offers.

Unlike trackers they run in the training process, and import what guards it when training begins.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from ..config import Settings
from ..errors import MissingPackageError
from ..run import Run
from ..types import Finding

if TYPE_CHECKING:
    from ..watching.process import WatchedProcess


class FrameworkGuard:
    """The guard of a training that a framework runs, and its record.

    Args:
        run_dir: folder of the run; a new one under ``runs/`` by default.
        name: name of the run; the script's name by default.
        settings: see ``holdfast.Settings``.
        say: where live lines and the summary go; standard error by default.
        quiet: no live lines and no summary.
    """

    def __init__(
        self,
        *,
        run_dir: str | os.PathLike[str] | None = None,
        name: str | None = None,
        settings: Settings | None = None,
        say: Callable[[str], None] | None = None,
        quiet: bool = False,
    ) -> None:
        super().__init__()
        self._given: dict[str, Any] = {"run_dir": run_dir, "name": name, "settings": settings}
        self._given |= {"say": say, "quiet": quiet}
        self._watched: WatchedProcess | None = None

    @property
    def run(self) -> Run | None:
        """The run folder, once the first backward pass has opened it; the newest one."""
        return None if self._watched is None else self._watched.run

    @property
    def skipped(self) -> int:
        """Steps skipped so far, as far as the host knows."""
        return 0 if self._watched is None else self._watched.skipped

    @property
    def findings(self) -> list[Finding]:
        """Findings so far."""
        return [] if self._watched is None else self._watched.findings

    def report(self) -> str:
        """The summary that is printed at the end; may be asked for at any time."""
        return "" if self._watched is None else self._watched.report()

    def _repr_html_(self) -> str:
        """Card that a notebook shows."""
        from ..report import card_html

        return card_html(None) if self._watched is None else self._watched._repr_html_()

    def _begins(self, *, main: bool) -> None:
        """Training begins; ``main``: this is the process that talks to the user."""
        quiet = self._given["quiet"] or not main
        try:
            from ..watching.process import watch_process

            self._watched = watch_process(**{**self._given, "quiet": quiet})
        except Exception as error:  # a training must not end because it cannot be guarded
            text = " ".join(str(error).split())
            say = self._given["say"] or partial(print, file=sys.stderr)
            say(f"holdfast: could not start ({text}); the training runs unguarded")

    def _knows(self, optimizers: Iterable[object], models: Iterable[Any]) -> None:
        """The optimizers and models of the training, which may have been made before."""
        if self._watched is not None:
            self._watched.knows(optimizers, models)

    def _ends(self, error: BaseException | None = None) -> None:
        """Training is over; ``error`` is what ended it, and the framework raises it again."""
        if self._watched is None:
            return
        if error is None:
            self._watched.close()
        else:
            self._watched.ended_by(error)


def missing(form: str, package: str, error: ModuleNotFoundError) -> Exception:
    """What to raise where a framework cannot be imported: the fix, if it is not installed."""
    if (error.name or "").split(".")[0] not in (package, f"pytorch_{package}"):
        return error
    return MissingPackageError(
        f"holdfast.integrations.{form} needs {package}, which is not installed: "
        f"pip install {package}"
    )
