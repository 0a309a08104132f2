"""Interface that resume needs of the training; the guard implements it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch.optim import Optimizer

from ..records import Kind


class DecisionState(Protocol):
    """What the guard decides by: baselines, counters, budgets."""

    def state(self, iterator: Any) -> dict[str, Any] | None:
        """All of it as plain data; None while something is suspected or tried."""
        ...

    def restore(self, state: Mapping[str, Any], iterator: Any) -> None:
        """Go on from what ``state`` gave."""
        ...


class Training(Protocol):
    """The training in this process."""

    def guards(self) -> Sequence[tuple[Optimizer, Any]]:
        """Every optimizer still alive."""
        ...

    def record_at(self, step: int, record: Kind) -> None:
        """Write an Event of a step."""
        ...

    def failure(self, where: str, error: Exception) -> None:
        """Record that a part of holdfast failed."""
        ...

    def run_folder(self) -> Path | None:
        """The folder of this run; None while there is none."""
        ...
