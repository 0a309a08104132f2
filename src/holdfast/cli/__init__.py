"""The command line: a plain list of commands, one file each, and a small ``main``.

A command is a class with a ``name``, a docstring that is its help, ``prepare_parser(parser)``
and ``run(args) -> int``. One with ``raw = True`` gets its arguments unparsed, together with
its parser, in ``run_raw(argv, parser)``: what follows ``holdfast run SCRIPT`` is not ours to
read, which ``hands_over = True`` tells the completion of shells; ``verbs`` are classes of commands
below a raw one. Commands are imported when they are used, so that ``holdfast --version`` costs
nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from ..errors import HoldfastError
from ._commands import COMMANDS, find_command, overview
from ._parser import Leave, Parser
from ._warning import warn

_PACKAGES = ("torch", "numpy", "psutil", "yaml")
"""What holdfast requires, and a folder on the path may lack."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code; bad input prints one line and returns 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    _open_closed_streams()
    try:
        code = _carry_out(words)
        sys.stdout.flush()
        return code
    except HoldfastError as error:
        _complain(str(error))
        return error.exit_code
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _PACKAGES or _while_training(error):
            raise
        _complain(f"this needs {package}, which is not installed here; pip install {package}")
        return HoldfastError.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (head, less) has seen enough; python must not complain when it exits.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        # A full disk, a folder without permission, a path that is gone.
        if _while_training(error):
            raise
        where = error.filename or "the working directory or the output"
        why = error.strerror or error
        _complain(f"{where}: {why}; choose another place, or check its permissions and the disk")
        return HoldfastError.exit_code


def _while_training(error: BaseException) -> bool:
    """Whether an error comes out of a recipe, which is the user's code: it needs its traceback."""
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_globals.get("__name__", "").startswith("holdfast.training."):
            return True
        frame = frame.tb_next
    return False


def _open_closed_streams() -> None:
    """Give a closed standard stream a place to write to; a script does not inherit it."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _complain(text: str) -> None:
    """One line on standard error."""
    with contextlib.suppress(OSError):
        warn(f"error: {' '.join(text.split())}")


def _carry_out(words: list[str]) -> int:
    if words[:1] == ["help"] and len(words) > 1:
        words = [words[1], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview(), file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        from .. import __version__

        print(f"holdfast {__version__}")
        return 0
    command = find_command(words[0])
    parser = Parser.of(command)
    try:
        if getattr(command, "raw", False):
            return command.run_raw(words[1:], parser)
        return command.run(parser.parse_args(words[1:]))
    except Leave as leave:
        return leave.code


__all__ = ["COMMANDS", "main"]
