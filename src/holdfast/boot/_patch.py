"""The shape of an entry in the table of patches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..guard.engine import Engine

GetEngine = Callable[[], Engine | None]
Function = Callable[..., Any]


def _always() -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One replaced function: where it stands, under which other names, why, and when."""

    target: str
    why: str
    make: Callable[[GetEngine, Function], Function]
    aliases: tuple[str, ...] = ()
    when: Callable[[], bool] = _always
    on_order: bool = False
    """In only while an exam asks for it."""
