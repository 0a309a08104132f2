"""Detectors that come from elsewhere: installed packages and bare checkouts.

A package offers detectors under the entry-point group ``holdfast.detectors``; each entry is a
Detector class or a module with a tuple ``DETECTORS``. Entry points need an installed
distribution, so ``HOLDFAST_PLUGINS=module,other.module`` does the same for a checkout.
Nothing here is imported before somebody calls ``load_plugins``.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .base import Detector

GROUP = "holdfast.detectors"
VARIABLE = "HOLDFAST_PLUGINS"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plugins:
    """What was found, and one line for each plugin that could not be used."""

    detectors: tuple[type[Detector], ...] = ()
    warnings: tuple[str, ...] = ()


def load_plugins(environ: Mapping[str, str], taken: Iterable[type[Detector]] = ()) -> Plugins:
    """Import every plugin; one that fails is a warning, never an exception.

    Args:
        environ: where ``HOLDFAST_PLUGINS`` is looked up, mostly ``os.environ``.
        taken: detectors whose codes and names a plugin must not use.
    """
    used = {label for detector in taken for label in (detector.code, detector.name)}
    found: list[type[Detector]] = []
    warnings: list[str] = []
    for source, load in _offers(environ):
        try:
            candidates = _detectors_in(load())
            for detector in candidates:
                _reject_misfits(detector, used)
        # A plugin may raise anything at all while it is imported, even SystemExit.
        except (Exception, SystemExit) as error:
            reason = str(error).splitlines()[0] if str(error) else "no reason given"
            warnings.append(f"plugin {source} is left out: {type(error).__name__}: {reason}")
            continue
        found += candidates
        used |= {label for detector in candidates for label in (detector.code, detector.name)}
    return Plugins(detectors=tuple(found), warnings=tuple(warnings))


def _offers(environ: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """Each plugin's name and a function that imports it."""
    for entry in sorted(importlib.metadata.entry_points(group=GROUP)):
        yield f"{entry.name} ({entry.value})", entry.load
    for name in filter(None, (n.strip() for n in environ.get(VARIABLE, "").split(","))):
        yield f"{name} ({VARIABLE})", lambda name=name: importlib.import_module(name)


def _detectors_in(offer: Any) -> list[type[Detector]]:
    if isinstance(offer, type):
        return [offer]
    # A model family without detectors of its own is no mistake: it may bring recipes only.
    return list(getattr(offer, "DETECTORS", ()))


def _reject_misfits(detector: Any, used: set[str]) -> None:
    if not (isinstance(detector, type) and issubclass(detector, Detector)):
        raise TypeError(f"{detector!r} is not a Detector class")
    for attribute in ("code", "name", "severity", "needs", "since"):
        if not hasattr(detector, attribute):
            raise TypeError(f"{detector.__name__} has no {attribute}")
    for label in (detector.code, detector.name):
        if label in used:
            raise ValueError(f"{label} is taken by another detector")
