"""The settings that the verbs read, as ``holdfast train`` does."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ...answers import add_set


def set_option(parser: argparse.ArgumentParser) -> None:
    """``--config``, ``--preset`` and ``--set``, as of ``holdfast train``."""
    parser.add_argument("--config", metavar="FILE", help="settings as YAML")
    parser.add_argument("--preset", metavar="NAME", help="such as synthetic or small")
    add_set(parser, "one setting, e.g. data.time_branch=time")


def settings_of(kind: str, args: argparse.Namespace, more: Sequence[str] = ()) -> Any:
    """The settings that the options say, of "reg", "mae" or "inp"."""
    from holdfast.training import resolve

    from ..kinds import recipe_of

    return resolve(recipe_of(kind), args.config, args.preset, [*args.set, *more], "none")
