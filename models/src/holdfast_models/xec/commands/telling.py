"""What the verbs share: options, numbers on the command line, and answers for both readers."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

Verb = Callable[..., argparse.ArgumentParser]
"""``verb(name, what, act, examples)``: a new verb's parser."""


def whole(least: int) -> Callable[[str], int]:
    """Reads a whole number that is not below ``least``."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return read


def set_option(parser: argparse.ArgumentParser) -> None:
    """``--config``, ``--preset`` and ``--set``, as of ``holdfast train``."""
    parser.add_argument("--config", metavar="FILE", help="settings as YAML")
    parser.add_argument("--preset", metavar="NAME", help="such as synthetic or small")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[],
        help="one setting, e.g. data.time_branch=time (repeatable)",
    )  # fmt: skip


def settings_of(kind: str, args: argparse.Namespace, more: Sequence[str] = ()) -> Any:
    """The settings that the options say, of "reg", "mae" or "inp"."""
    from holdfast.training import resolve

    from ..kinds import recipe_of

    return resolve(recipe_of(kind), args.config, args.preset, [*args.set, *more], "none")


def answer(args: argparse.Namespace, plain: Any, lines: Sequence[str]) -> None:
    """For programs with ``--json``, else for people."""
    print(json.dumps(_finite(plain), indent=2) if args.json else "\n".join(lines))


def say(line: str) -> None:
    """Progress, away from the answer."""
    print(f"holdfast: {line}", file=sys.stderr, flush=True)


def _finite(value: Any) -> Any:
    """The same without numbers that JSON has no word for."""
    if isinstance(value, dict):
        return {str(key): _finite(inside) for key, inside in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inside) for inside in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
