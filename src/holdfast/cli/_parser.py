"""argparse with one-line errors that name the next step."""

from __future__ import annotations

import argparse
import difflib
import inspect
from collections.abc import Sequence
from typing import NoReturn, Protocol

from ..errors import UsageError

RUN_HELP = "run: its folder, its name or the beginning of it, or last"
RUN_OR_NEWEST = f"{RUN_HELP} (default: last, the newest)"


class Command(Protocol):
    """What every command has; the docstring of its class is its help."""

    name: str

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the options."""


class Leave(Exception):
    """argparse is done (``--help``): exit with this code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Parser(argparse.ArgumentParser):
    """Raises ``UsageError`` instead of printing usage and leaving the process."""

    @classmethod
    def of(cls, command: Command) -> Parser:
        """The parser of a command: its docstring is the help, its options are its own."""
        parser = cls(
            prog=f"holdfast {command.name}",
            description=inspect.getdoc(type(command)),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            # An abbreviation that works today is ambiguous tomorrow.
            allow_abbrev=False,
        )
        command.prepare_parser(parser)
        return parser

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse, and name the nearest option for one that does not exist."""
        known, extra = self.parse_known_args(args, namespace or argparse.Namespace())
        if extra:
            word = extra[0].partition("=")[0]
            if not word.startswith("-"):
                self.error(f"unexpected argument {word!r}")
            near = difflib.get_close_matches(word, list(self._option_string_actions), n=1)
            self.error(f"unknown option {word!r}{f', did you mean {near[0]!r}?' if near else ''}")
        return known

    def error(self, message: str) -> NoReturn:
        """One line: what is wrong, and where the options are listed."""
        joint = " " if message.endswith("?") else "; "
        raise UsageError(f"{message}{joint}see: {self.prog} --help")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Leave through ``main`` instead of through the interpreter."""
        raise Leave(status)
