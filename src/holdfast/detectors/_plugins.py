"""Plugin detectors, from installed packages and bare checkouts.

A package offers detectors under the entry-point group ``holdfast.detectors``; each entry is a
Detector class or a module with a tuple ``DETECTORS``; see ``holdfast.plugins``. Nothing here is
imported before ``load_plugins`` is called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..plugins import find_offers
from .base import Detector

GROUP = "holdfast.detectors"


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

    def check(detectors: list[Any]) -> None:
        for detector in detectors:
            _reject_misfits(detector, used)
        used.update(label for detector in detectors for label in (detector.code, detector.name))

    offers, warnings = find_offers(GROUP, "DETECTORS", environ, check)
    return Plugins(detectors=tuple(o.value for o in offers), warnings=tuple(warnings))


def _reject_misfits(detector: Any, used: set[str]) -> None:
    if not (isinstance(detector, type) and issubclass(detector, Detector)):
        raise TypeError(f"{detector!r} is not a Detector class")
    for attribute in ("code", "name", "severity", "needs", "since"):
        if not hasattr(detector, attribute):
            raise TypeError(f"{detector.__name__} has no {attribute}")
    for label in (detector.code, detector.name):
        if label in used:
            raise ValueError(f"{label} is taken by another detector")
