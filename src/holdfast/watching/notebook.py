"""What IPython knows and python alone does not: how a cell ended, and which notebook this is.

Nothing of IPython is imported: a process that it runs in has it.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

# The path of the notebook, as the server that starts a kernel tells it, or VS Code's extension.
_PATH_VARIABLE = "JPY_SESSION_NAME"
_PATH_NAME = "__vsc_ipynb_file__"
_SUFFIX = ".ipynb"
_CELL_ENDS = "post_run_cell"


def _shell() -> Any:
    """The IPython of this process; None without one."""
    module = sys.modules.get("IPython")
    return None if module is None else getattr(module, "get_ipython", lambda: None)()


def has_cells() -> bool:
    """Whether code comes in cells, whose ends are told."""
    return getattr(_shell(), "events", None) is not None


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook, not a terminal."""
    return getattr(_shell(), "kernel", None) is not None


def notebook_name() -> str:
    """The file of the notebook, as far as somebody has told it; empty in a terminal."""
    if not in_notebook():
        return ""
    reported = (_shell().user_ns.get(_PATH_NAME), os.environ.get(_PATH_VARIABLE))
    names = [PurePath(path).name for path in reported if isinstance(path, str)]
    return next((name for name in names if name.endswith(_SUFFIX)), "notebook")


def when_cells_end(call: Callable[[BaseException | None], None]) -> Callable[[], None]:
    """Call with the exception that ended a cell, None for a good one; returns what ends that."""
    events = getattr(_shell(), "events", None)
    if events is None:
        return lambda: None

    def ended(result: Any) -> None:
        call(getattr(result, "error_in_exec", None))

    events.register(_CELL_ENDS, ended)
    return lambda: events.unregister(_CELL_ENDS, ended)


def is_used_by(thing: object, error: BaseException) -> bool:
    """Whether the code that an exception came through uses something, by any name."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        used = [frame.f_globals.get(name) for name in frame.f_code.co_names]
        if frame.f_locals is not frame.f_globals:  # those of a cell are the whole notebook's
            used += frame.f_locals.values()
        if any(value is thing for value in used):
            return True
    return False
