"""Entry in the table of patches."""

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
    """One replaced function: its target, aliases, reason, and when it is active."""

    target: str
    why: str
    make: Callable[[GetEngine, Any], Function]
    aliases: tuple[str, ...] = ()
    when: Callable[[], bool] = _always
    on_order: str = ""
    """Installed only while a measurement needs it: which one."""
    adds: bool = False
    """The target is a method that torch does not have."""
