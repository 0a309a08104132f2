"""Keeps a resumed script from writing what its earlier run has written already.

Before its first pass, opening a file anew that the earlier run went on writing would lose that: the
resume is refused. On the way from pass to pass what the script writes was written before: files
that it opens for writing take nothing in.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Callable
from typing import Any

from ..diagnosis.source.files import kind_of

_WRITES = frozenset("wax+")


class Outputs:
    """Stands before ``open`` while a script comes to its place.

    Args:
        since: when the earlier run began to train.
        refuse: ends the process, with a reason, a file and a line.
    """

    def __init__(self, since: float, refuse: Callable[[str, str, int], object]) -> None:
        self.under_way = False
        """Whether a pass was over already."""
        self._since, self._refuse = since, refuse
        self._open = builtins.open
        self._ours = self._opened
        builtins.open = self._ours  # type: ignore[assignment]

    def release(self) -> None:
        """The script has come to its place: files are files again."""
        # Somebody else may have replaced it meanwhile, and calls ours.
        if builtins.open is self._ours:
            builtins.open = self._open
        self._opened_for_real = True

    _opened_for_real = False

    def _opened(self, file: Any, mode: str = "r", *args: Any, **named: Any) -> Any:
        if (
            not self._opened_for_real
            and _WRITES & set(mode)
            and isinstance(file, str | os.PathLike)
        ):
            caller = sys._getframe(1)
            while caller.f_back is not None and kind_of(caller.f_code.co_filename) != "user":
                caller = caller.f_back
            if self.under_way and os.path.isfile(file):
                file = os.devnull
                mode = mode.replace("x", "w")
            elif "w" in mode and self._newer(file):
                text = f"{os.fspath(file)} is opened for writing anew; what was written is lost"
                self._refuse(text, caller.f_code.co_filename, caller.f_lineno)
        return self._open(file, mode, *args, **named)

    def _newer(self, file: Any) -> bool:
        try:
            stat = os.stat(file)
        except OSError:
            return False
        return stat.st_size > 0 and stat.st_mtime > self._since
