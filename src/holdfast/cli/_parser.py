"""argparse with one-line errors that name the next step."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

from ..errors import UsageError

RUN_HELP = "run: its folder, its name or the beginning of it, or last"
RUN_OR_NEWEST = f"{RUN_HELP} (default: last, the newest)"


FORMATS = {
    "text": "text for people",
    "json": "json for programs",
    "html": "html for a browser",
    "md": "md for an issue",
    "github": "github for annotations of a workflow",
    "sarif": "sarif for code scanning and editors",
}
"""Every form of output and what it is for; a command offers some of them."""


def add_format(parser: argparse.ArgumentParser, *names: str) -> None:
    """The option ``--format``, the same wherever there is a choice; the first is the default."""
    reported = ", ".join(FORMATS[name] for name in names)
    parser.add_argument(
        "--format",
        metavar="FORM",
        choices=names,
        default=names[0],
        help=f"{reported} (default: {names[0]})",
    )
    if "json" in names:
        old_name(parser, "--json", "format", const="json")


def old_name(
    parser: argparse.ArgumentParser, option: str, dest: str, const: object = None, **more: Any
) -> None:
    """An option that was called so in an earlier version: it works and is not listed.

    Args:
        parser: of the command.
        option: the old name.
        dest: where the new one puts its value.
        const: what it stands for, if it takes no value.
        more: what the new one has besides.
    """
    if const is not None:
        more |= {"action": "store_const", "const": const}
    more |= {"dest": dest, "default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    parser.add_argument(option, **more)


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

    @property
    def actions(self) -> list[argparse.Action]:
        """Its options and arguments, in the order of the help."""
        return list(self._actions)

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Parse, and name the nearest option for one that does not exist."""
        self._refuse_empty(args or ())
        known, extra = self.parse_known_args(args, namespace or argparse.Namespace())
        if extra:
            word = extra[0].partition("=")[0]
            if not word.startswith("-"):
                self.error(f"unexpected argument {word!r}")
            import difflib

            near = difflib.get_close_matches(word, list(self._option_string_actions), n=1)
            self.error(f"unknown option {word!r}{f', did you mean {near[0]!r}?' if near else ''}")
        return known

    def _refuse_empty(self, words: Sequence[str]) -> None:
        """An empty folder would be the working directory; mostly a variable was not set."""
        for i, word in enumerate(words):
            option, equals, value = word.partition("=")
            if not word or (option.startswith("--") and equals and not value):
                before = option or (words[i - 1] if i else "")
                where = f"the value of {before}" if before.startswith("--") else "an argument"
                self.error(f"{where} is empty, perhaps a variable that is not set")

    def error(self, message: str) -> NoReturn:
        """One line: what is wrong, and where the options are listed."""
        joint = " " if message.endswith("?") else "; "
        raise UsageError(f"{message}{joint}see: {self.prog} --help")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Leave through ``main`` instead of through the interpreter."""
        raise Leave(status)
