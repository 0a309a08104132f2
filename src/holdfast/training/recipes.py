"""Recipes: something that can be trained, under a name, and where they are found.

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class MySettings(Section):
        width: int = 64
        train: TrainSettings = TrainSettings()

    def build(settings: MySettings, place: Place) -> Task: ...

    RECIPE = Recipe(name="mine", summary="What it learns", settings=MySettings, build=build)

``holdfast train path/to/mine.py:RECIPE`` trains it. A package offers its own by name under the
entry-point group ``holdfast.recipes`` or in a tuple ``RECIPES``; see ``holdfast.plugins``.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import UsageError
from ..plugins import Offer, find_offers, load
from .recipe import Recipe
from .resolving import (
    CONFIG,
    former_run,
    in_force,
    resolve,
    saved_config,
    to_yaml,
)

__all__ = [
    "CONFIG",
    "RECIPES",
    "Recipe",
    "find_recipe",
    "former_run",
    "in_force",
    "known_recipes",
    "resolve",
    "saved_config",
    "to_yaml",
]

GROUP = "holdfast.recipes"
RECIPES = ("holdfast.training.demo:RECIPE",)
"""Our own, imported when somebody asks for a recipe."""

_ATTRIBUTE = "RECIPE"  # where a file is given alone


def find_recipe(
    name: str,
    say: Callable[[str], None] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Recipe:
    """The recipe of this name, or the one at ``file.py:NAME`` or ``package.module:NAME``.

    Args:
        name: what the user typed.
        say: called with one line for each plugin that cannot be used; standard error by default.
        environ: where ``HOLDFAST_PLUGINS`` is looked up.
    """
    if ":" in name or name.endswith(".py"):
        return _at(name)
    offers, warnings = known_recipes(environ)
    for warning in warnings:
        (say or _to_stderr)(warning)
    found = [offer for offer in offers if offer.value.name == name]
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} recipes are called {name!r}: "
            f"{' and '.join(offer.source for offer in found)}; "
            "give the one you mean as package.module:NAME"
        )
    if found:
        return found[0].value
    names = [offer.value.name for offer in offers]
    raise UsageError(f"no recipe {name!r}; {_hint(name, names)} see: holdfast train --list")


def known_recipes(environ: Mapping[str, str] = os.environ) -> tuple[list[Offer], list[str]]:
    """Every recipe with its source, our own first, and a line for each unusable plugin."""
    own = [Offer(source="holdfast", value=load(place)) for place in RECIPES]
    brought, warnings = find_offers(GROUP, "RECIPES", environ, _reject_misfits)
    fresh = [offer for offer in brought if all(offer.value is not one.value for one in own)]
    return [*own, *fresh], warnings


def _reject_misfits(recipes: list[Any]) -> None:
    for one in recipes:
        _reject_misfit(one)


def _reject_misfit(recipe: Any) -> None:
    if not isinstance(recipe, Recipe):
        raise TypeError(f"{recipe!r} is not a Recipe")


def _at(name: str) -> Recipe:
    """The recipe in a file or module; whatever is wrong with it is one line."""
    place, _, attribute = name.rpartition(":")
    if name.endswith(".py"):
        place, attribute = name, _ATTRIBUTE
    try:
        module = _import_file(place) if place.endswith(".py") else _import_module(place)
    except UsageError:
        raise
    # The user's own code runs here, and may raise anything at all.
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{place} cannot be imported: {type(error).__name__}: {error}{_where(error)}; "
            "check the name, or correct that line"
        ) from error
    recipe = getattr(module, attribute, None)
    if recipe is None:
        names = [key for key, value in vars(module).items() if isinstance(value, Recipe)]
        hint = _hint(attribute, names) if names else "it holds no recipe;"
        raise UsageError(
            f"nothing is called {attribute!r} in {place}; {hint} a recipe is made with Recipe(...)"
        )
    if not isinstance(recipe, Recipe):
        kind = type(recipe).__name__
        raise UsageError(
            f"{attribute} in {place} is of type {kind}, no recipe; make one with Recipe(...)"
        )
    return recipe


def _import_module(name: str) -> ModuleType:
    _put_on_path(os.getcwd())
    return importlib.import_module(name)


def _import_file(place: str) -> ModuleType:
    """Import a file under its own name, its folder on the path, as if it were the script.

    Loader workers that are started afresh import the same name again to find its classes.
    """
    path = Path(place).resolve()
    if not path.is_file():
        near = _neighbours(path)
        hint = f"did you mean {near[0]}?" if near else "check the path"
        raise UsageError(f"no such recipe file: {place}; {hint}")
    former = sys.modules.get(path.stem)
    if former is not None and Path(getattr(former, "__file__", None) or ".").resolve() == path:
        return former
    if former is not None or _is_taken(path):
        raise UsageError(
            f"{place} cannot be imported: another module is called {path.stem!r}; rename the file"
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # a name that ends in .py has a loader
    module = importlib.util.module_from_spec(spec)
    _put_on_path(str(path.parent))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def _is_taken(path: Path) -> bool:
    """Whether the file would stand in the way of an installed module of its name."""
    if "." in path.stem:
        raise UsageError(
            f"{path.name} cannot be imported: its name has a dot too many; rename the file"
        )
    found = importlib.util.find_spec(path.stem)
    origin = Path(found.origin or ".").resolve() if found is not None else path
    # The working directory is on the path by accident of how python was started.
    return origin != path and origin.parent != Path.cwd()


def _put_on_path(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _where(error: BaseException) -> str:
    """``, at file:line``: the last line of the user's own, rather than of a library's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f", at {error.filename}:{error.lineno}"
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    folders = (str(Path(__file__).parents[1]), *map(sysconfig.get_path, ("stdlib", "purelib")))
    libraries = ("<", *(f"{folder}{os.sep}" for folder in folders))
    own = [f"{name}:{line}" for name, line in frames if not name.startswith(libraries)]
    return f", at {own[-1]}" if own else ""


def _neighbours(path: Path) -> list[str]:
    names = [found.name for found in path.parent.glob("*.py")]
    return difflib.get_close_matches(path.name, names, n=1)


def _hint(name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(sorted(names))};"


def _to_stderr(line: str) -> None:
    print(f"holdfast: {line}", file=sys.stderr)
