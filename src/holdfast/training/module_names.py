"""Submodules of a model by the patterns that settings name them with, such as ``blocks.*``."""

from __future__ import annotations

import difflib
import re
from fnmatch import fnmatchcase

from torch import nn

from ..errors import SettingsError

# They hold modules and are never called themselves.
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def modules_named(
    model: nn.Module, patterns: tuple[str, ...], setting: str
) -> dict[str, nn.Module]:
    """The submodules that the patterns mean, by their names, in the order of the model.

    Args:
        model: what they are in.
        patterns: ``*``, ``?`` and ``[...]`` stand for parts of a name between two dots.
        setting: where the patterns stand, for the error if one of them means nothing.
    """
    modules = {name: module for name, module in model.named_modules() if name}
    wanted = {name for one in patterns for name in _matching(one, modules, setting)}
    return {name: module for name, module in modules.items() if name in wanted}


def parents(name: str) -> set[str]:
    """The names of the modules that a module is in.

    >>> sorted(parents("blocks.0.mlp"))
    ['blocks', 'blocks.0']
    """
    parts = name.split(".")
    return {".".join(parts[:i]) for i in range(1, len(parts))}


def _matching(pattern: str, modules: dict[str, nn.Module], setting: str) -> list[str]:
    parts = pattern.split(".")
    found = [name for name in modules if _fits(name.split("."), parts)]
    if not found:
        raise SettingsError(
            f"{setting}: no module matches {pattern!r}; {_nearest(pattern, modules)}"
        )
    called = [name for name in found if not isinstance(modules[name], _CONTAINERS)]
    if not called:
        kind = type(modules[found[0]]).__name__
        raise SettingsError(
            f"{setting}: {pattern!r} is a {kind}, which is never called itself; "
            f"write {f'{pattern}.*'!r}"
        )
    return called


def _fits(name: list[str], parts: list[str]) -> bool:
    return len(name) == len(parts) and all(map(fnmatchcase, name, parts))


def _nearest(pattern: str, modules: dict[str, nn.Module]) -> str:
    """Names as a user would write them: all of a numbered list at once."""
    names = list(dict.fromkeys(re.sub(r"(?<![^.])\d+(?![^.])", "*", name) for name in modules))
    close = difflib.get_close_matches(pattern, names, n=3)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    top = [name for name in names if "." not in name] or ["none"]
    return f"there are {', '.join(top[:8])}"
