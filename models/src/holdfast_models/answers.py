"""What the commands of all families share: numbers that are given, answers for both readers."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from holdfast import HoldfastError

__all__ = [
    "Verb",
    "add_format",
    "add_output",
    "add_set",
    "add_settings",
    "answer",
    "changed",
    "figures",
    "finite_only",
    "named_run",
    "reported_as",
    "say",
    "verbs_of",
    "whole",
    "yaml_lines",
]

Verb = Callable[..., argparse.ArgumentParser]
"""``verb(name, what, act, examples)``: a new verb's parser."""


def verbs_of(parser: argparse.ArgumentParser) -> Verb:
    """Makes the verbs of a command; ``act`` carries one out, with ``args.format`` mostly."""
    verbs = parser.add_subparsers(metavar="VERB", dest="verb", required=True)

    def verb(
        name: str, what: str, act: Callable[[Any], int], examples: str = "", *, json: bool = True
    ) -> argparse.ArgumentParser:
        one = verbs.add_parser(
            name, help=what, description=what, epilog=examples, allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        if json:
            add_format(one)
        one.set_defaults(act=act)
        return one

    return verb


def add_format(parser: argparse.ArgumentParser) -> None:
    """The option ``--format``, and ``--json``, its former name."""
    parser.add_argument(
        "--format", metavar="FORM", choices=("text", "json"), default="text",
        help="text for people, json for programs (default: text)",
    )  # fmt: skip
    parser.add_argument(
        "--json", dest="format", action="store_const", const="json",
        default=argparse.SUPPRESS, help=argparse.SUPPRESS,
    )  # fmt: skip


def add_set(parser: argparse.ArgumentParser, words: str) -> None:
    """The option ``--set``, as of ``holdfast train``; ``words`` say what for."""
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help=f"{words} (repeatable)"
    )


def add_settings(parser: argparse.ArgumentParser, presets: str) -> None:
    """``--config``, ``--preset`` and ``--set``, as of ``holdfast train``."""
    parser.add_argument("--config", metavar="FILE", help="settings as YAML")
    parser.add_argument("--preset", metavar="NAME", help=presets)
    add_set(parser, "one setting, e.g. train.data.batch=32")


def add_output(parser: argparse.ArgumentParser, help: str, **how: Any) -> None:
    """``--output``, and ``--out``, its short name: ``args.out``."""
    how = {"metavar": "FILE", **how}
    parser.add_argument("--output", "--out", dest="out", help=help, **how)


def whole(least: int) -> Callable[[str], int]:
    """Reads a whole number that is not below ``least``."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return read


def named_run(word: str) -> str:
    """Reads RUN: a path, ``last``, or the name of a run under ``runs/`` or its beginning."""
    from holdfast import run_path

    return str(run_path(word))


def answer(args: argparse.Namespace, plain: Any, lines: Sequence[str]) -> None:
    """For programs with ``--json``, else for people."""
    print(json.dumps(finite_only(plain), indent=2) if args.format == "json" else "\n".join(lines))


def figures(found: Mapping[str, Any], before: str = "") -> list[str]:
    """What was measured, by name, for people."""
    lines = []
    for name, value in found.items():
        if isinstance(value, Mapping):
            lines += [f"{before}{name}", *figures(value, before + "  ")]
        elif not isinstance(value, list):
            said = f"{value:,.4g}" if isinstance(value, float) else str(value)
            lines.append(f"{before}{name:<32}{said}")
        elif value:
            lines += [f"{before}{name}", *(f"  {one}" for one in value)]
    return lines


@contextlib.contextmanager
def reported_as(name: str) -> Iterator[None]:
    """Makes one line, beginning with ``name``, of what a file is not there or not fit for."""
    try:
        yield
    except OSError as error:
        raise HoldfastError(f"{name}: {error.strerror}; check the path") from None
    except UnicodeDecodeError:
        raise HoldfastError(f"{name}: is no UTF-8 text; convert it") from None


def say(line: str) -> None:
    """Progress, away from the answer."""
    print(f"holdfast: {line}", file=sys.stderr, flush=True)


def changed(now: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from the usual, section by section."""
    found: dict[str, Any] = {}
    for key, value in now.items():
        if isinstance(value, dict):
            value = changed(cast(dict[str, Any], value), usual.get(key) or {})
            if value:
                found[key] = value
        elif key not in usual or value != usual[key]:
            found[key] = value
    return found


def yaml_lines(settings: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Settings as YAML that ``holdfast train`` reads."""
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield f"{indent}{key}:"
            yield from yaml_lines(cast(dict[str, Any], value), f"{indent}  ")
        else:
            yield f"{indent}{key}: {json.dumps(value)}"


def finite_only(value: Any) -> Any:
    """The same without numbers that JSON has no word for."""
    if isinstance(value, dict):
        return {str(key): finite_only(inside) for key, inside in value.items()}
    if isinstance(value, list | tuple):
        return [finite_only(inside) for inside in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
