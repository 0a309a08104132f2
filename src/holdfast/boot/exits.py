"""Note which exception a script was handling when it called ``sys.exit``.

Python forgets it when ``SystemExit`` ends the process. Imports nothing but what is part of the
interpreter: this is loaded before the script.
"""

from __future__ import annotations

import builtins
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Leaving:
    """The last call of ``sys.exit``: python forgets what the script was handling then."""

    def __init__(self, handled: BaseException, code: Any, caller: Any) -> None:
        self.handled, self.code, self.caller = handled, code, caller
        outermost = caller
        while outermost.f_back is not None:
            outermost = outermost.f_back
        self.outermost = outermost


leaving: Leaving | None = None


def _noting(original: Any, name: str, place: int) -> Any:
    """``sys.exit``, or ``exit()`` of the site module, noting what is being handled.

    Args:
        original: the function.
        name: its own.
        place: where it takes the exit code.
    """

    def exit(*args: Any, **named: Any) -> Any:
        global leaving
        handled = sys.exc_info()[1]
        code = args[place] if len(args) > place else named.get("code")
        leaving = None
        if handled is not None and code is not None and not (isinstance(code, int) and code == 0):
            leaving = Leaving(handled, code, sys._getframe(1))
        return original(*args, **named)

    exit.__name__ = exit.__qualname__ = name
    exit.__doc__ = original.__doc__
    return exit


def note_exits() -> None:
    """Wrap ``sys.exit`` and ``exit()``; what they do and raise stays the same."""
    sys.exit = _noting(sys.exit, "exit", 0)
    quitter: Any = type(getattr(builtins, "exit", None))
    if quitter.__name__ == "Quitter":  # python -S has none
        quitter.__call__ = _noting(quitter.__call__, "__call__", 1)
