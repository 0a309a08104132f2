"""Table of commands, and lookup by name."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ._warning import warn

COMMANDS = (
    ("run", "holdfast.cli.run", "RunCommand"),
    ("train", "holdfast.cli.train", "TrainCommand"),
    ("predict", "holdfast.cli.predict", "PredictCommand"),
    ("runs", "holdfast.cli.runs", "RunsCommand"),
    ("report", "holdfast.cli.report", "ReportCommand"),
    ("open", "holdfast.cli.open_page", "OpenCommand"),
    ("track", "holdfast.cli.track", "TrackCommand"),
    ("check", "holdfast.cli.check", "CheckCommand"),
    ("explain", "holdfast.cli.explain", "ExplainCommand"),
    ("checkpoint", "holdfast.cli.checkpoint", "CheckpointCommand"),
    ("compare", "holdfast.cli.compare", "CompareCommand"),
    ("faults", "holdfast.cli.faults", "FaultsCommand"),
    ("demo", "holdfast.cli.demo", "DemoCommand"),
    ("completion", "holdfast.cli.completion", "CompletionCommand"),
)
"""Name, module and class of every command of our own, in the order of the help."""

GROUP = "holdfast.commands"
"""Entry-point group under which a package adds commands: ``holdfast FAMILY VERB``."""

_SPACE = 13


def find_command(word: str) -> Any:
    """The command of this name; a wrong name is a ``UsageError`` with the nearest."""
    for name, module, cls in COMMANDS:
        if name == word:
            return getattr(importlib.import_module(module), cls)()
    if word.startswith("-"):
        raise UsageError(f"unknown option {word!r} before a command; see: holdfast --help")
    if word.endswith(".py") and Path(word).exists():
        raise UsageError(f"no command {word!r}; to run a script: holdfast run {word}")
    # Only now: our own commands start without importing other packages.
    added = plugin_commands()
    if word in added:
        return added[word]()
    names = [name for name, _, _ in COMMANDS] + list(added)
    import difflib

    near = difflib.get_close_matches(word, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else f"there are {', '.join(names)}; "
    raise UsageError(f"no command {word!r}; {hint}see: holdfast --help")


def all_commands() -> list[type[Any]]:
    """The classes of our own commands and of those of plugins."""
    ours = [getattr(importlib.import_module(module), cls) for _, module, cls in COMMANDS]
    return [*ours, *plugin_commands().values()]


def plugin_commands() -> dict[str, type[Any]]:
    """The commands of installed packages and of ``HOLDFAST_PLUGINS``, by name.

    A package that cannot be used is skipped, with a line on standard error.
    """
    from ..plugins import find_offers

    offers, warnings = find_offers(GROUP, "COMMANDS", os.environ, _reject_misfits)
    owners = {name: "holdfast itself" for name, _, _ in COMMANDS}
    found: dict[str, type[Any]] = {}
    for offer in offers:
        name: str = offer.value.name
        if name in owners:
            warnings.append(
                f"skipped the command {name} of plugin {offer.source}: "
                f"the name belongs to {owners[name]}"
            )
            continue
        owners[name] = offer.source
        found[name] = offer.value
    for warning in warnings:
        warn(warning)
    return found


def overview() -> str:
    """The help of ``holdfast`` itself: every command with the first line of its docstring."""
    lines = ["usage: holdfast COMMAND ...", ""]
    for name, module, cls in COMMANDS:
        if importlib.util.find_spec(module) is None:
            continue
        lines.append(_line(name, getattr(importlib.import_module(module), cls)))
    added = plugin_commands()
    if added:
        lines += ["", "from plugins:", "", *(_line(name, cls) for name, cls in added.items())]
    lines += [
        "",
        f"  {'--version'.ljust(_SPACE)}Print the version",
        "",
        "See `holdfast COMMAND --help` for the options of a command.",
    ]
    return "\n".join(lines)


def _line(name: str, command: type[Any]) -> str:
    lines = (command.__doc__ or "").strip().splitlines()
    return f"  {f'{name} '.ljust(_SPACE)}{lines[0].rstrip('.') if lines else ''}".rstrip()


def _reject_misfits(commands: list[Any]) -> None:
    for one in commands:
        _reject_misfit(one)


def _reject_misfit(command: Any) -> None:
    """Whether an offered command has what ours have; see ``holdfast.cli``."""
    if not isinstance(command, type):
        raise TypeError(f"{command!r} is not a command class")
    name = getattr(command, "name", None)
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise TypeError(f"{command.__name__} has no name of small letters, digits, _ and -")
    carry_out = "run_raw" if getattr(command, "raw", False) else "run"
    for method in ("prepare_parser", carry_out):
        if not callable(getattr(command, method, None)):
            raise TypeError(f"{command.__name__} has no {method}")
