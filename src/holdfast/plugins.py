"""What installed packages and bare checkouts bring: recipes, commands.

A package offers things under an entry-point group; each entry is such a thing or a module with
a tuple of them. Entry points need an installed distribution, so ``HOLDFAST_PLUGINS=module,...``
does the same for a checkout, and ``HOLDFAST_PLUGINS=none,...`` leaves out what is
installed. In a tuple ``"package.module:Name"`` stands for what is imported only when somebody
asks, so that one module can offer much and still be light.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

VARIABLE = "HOLDFAST_PLUGINS"
NONE_INSTALLED = "none"


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """One thing, and where it comes from as a person would name it."""

    source: str
    value: Any


def load(place: str) -> Any:
    """What ``package.module:Name`` stands for."""
    return importlib.metadata.EntryPoint(place, place, "").load()


def find_offers(
    group: str, attribute: str, environ: Mapping[str, str], check: Callable[[list[Any]], None]
) -> tuple[list[Offer], list[str]]:
    """Import every plugin; one that fails is a warning, never an exception.

    Args:
        group: the entry-point group, such as ``holdfast.recipes``.
        attribute: the tuple in a module that holds what it offers.
        environ: where ``HOLDFAST_PLUGINS`` is looked up, mostly ``os.environ``.
        check: raises if one of the new things of a plugin is not what it should be; the plugin
            is then left out.

    Returns:
        What was found, each thing once, and one line for each plugin that could not be used.
    """
    found: list[Offer] = []
    warnings: list[str] = []
    for source, import_it in _plugins(group, environ):
        try:
            values = [
                load(value) if isinstance(value, str) else value
                for value in _values_in(import_it(), attribute)
            ]
            # A package that is installed and named in the variable too offers everything twice.
            values = [v for v in values if all(v is not offer.value for offer in found)]
            check(values)
        # A plugin may raise anything at all while it is imported, even SystemExit.
        except (Exception, SystemExit) as error:
            reason = str(error).splitlines()[0] if str(error) else "no reason given"
            warnings.append(f"plugin {source} is left out: {type(error).__name__}: {reason}")
            continue
        found += [Offer(source=source, value=value) for value in values]
    return found, warnings


def _plugins(group: str, environ: Mapping[str, str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each plugin's name and a function that imports it."""
    named = [name.strip() for name in environ.get(VARIABLE, "").split(",") if name.strip()]
    if NONE_INSTALLED in named:
        named.remove(NONE_INSTALLED)
    else:
        for entry in sorted(importlib.metadata.entry_points(group=group)):
            yield f"{entry.name} ({entry.value})", entry.load
    for name in named:
        yield f"{name} ({VARIABLE})", lambda name=name: importlib.import_module(name)


def _values_in(offer: Any, attribute: str) -> list[Any]:
    # A module that brings nothing of this kind is no mistake: it may bring others.
    return list(getattr(offer, attribute, ())) if isinstance(offer, ModuleType) else [offer]
