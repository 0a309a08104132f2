"""The command line: a plain list of commands, one file each, and a small ``main``.

A command is a class with a ``name``, a docstring that is its help, ``prepare_parser(parser)``
and ``run(args) -> int``. One with ``raw = True`` gets its arguments unparsed, together with
its parser, in ``run_raw(argv, parser)``: what follows ``holdfast run SCRIPT`` is not ours to
read. Commands are imported when they are used, so that ``holdfast --version`` costs nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

from ..errors import HoldfastError
from ._commands import COMMANDS, find_command, overview
from ._parser import Leave, Parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code; bad input prints one line and returns 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _carry_out(words)
    except Leave as leave:
        return leave.code
    except HoldfastError as error:
        print(f"holdfast: error: {' '.join(str(error).split())}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (head, less) has seen enough; python must not complain when it exits.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _carry_out(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview(), file=sys.stdout if words else sys.stderr)
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        from .. import __version__

        print(f"holdfast {__version__}")
        return 0
    command = find_command(words[0])
    parser = Parser.of(command)
    if getattr(command, "raw", False):
        code = command.run_raw(words[1:], parser)
    else:
        code = command.run(parser.parse_args(words[1:]))
    sys.stdout.flush()
    return code


__all__ = ["COMMANDS", "main"]
