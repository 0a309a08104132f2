"""What recovery, watchers and exams see of the guard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ..exams.provenance import Scene
from ..probes.batches import Batch
from .journal import Journal
from .optimizer import GuardedOptimizer
from .roster import Roster


class GuardedTraining:
    """The training in this process."""

    def __init__(self, roster: Roster, journal: Journal) -> None:
        self._roster, self._journal = roster, journal

    @property
    def iteration(self) -> int:
        """The step that was counted last."""
        return self._journal.iteration

    @property
    def rank(self) -> int:
        """Of this process."""
        return self._journal.lane.rank

    @property
    def has_orders(self) -> bool:
        """Whether the process that judges asks for an action."""
        return self._journal.lane.has_orders

    def orders(self) -> list[dict[str, Any]]:
        """The actions it asks for."""
        return self._journal.lane.orders()

    def models(self) -> list[nn.Module]:
        """The models behind all optimizers."""
        return self._roster.models()

    def optimizers(self) -> list[tuple[Optimizer, Sequence[str]]]:
        """Every optimizer still alive, with the names of its parameters in their order."""
        return [(optimizer, guard.layers) for optimizer, guard in self._roster.all()]

    def guards(self) -> list[tuple[Optimizer, GuardedOptimizer]]:
        """Every optimizer still alive, with its guard."""
        return self._roster.all()

    def restored(self) -> None:
        """Weights, state and buffers were put back: what was learned of them is void."""
        self._roster.restored()

    def has_bad_gradient(self) -> bool:
        """Whether a gradient on the CPU is not finite; looks at all of them."""
        return self._roster.bad_gradient()

    def scene(self, batches: Sequence[Batch], rng: Tensor | None, loss: Tensor | None) -> Scene:
        """What an exam of a poisoned step must know."""
        return self._roster.scene(batches, rng, loss)

    def run_folder(self) -> Path | None:
        """The folder of the run; None while it is not open."""
        return self._journal.lane.run_folder()

    def record(self, kind: str, data: Mapping[str, Any]) -> None:
        """Write a measurement down as an Event of the next step: this one's row is written."""
        self._journal.tell(kind, self._journal.iteration + 1, dict(data))

    def record_at(self, kind: str, step: int, data: Mapping[str, Any]) -> None:
        """Write an Event of a step."""
        self._journal.tell(kind, step, dict(data))

    def not_covered(self, what: str, why: str) -> None:
        """Say, once, what cannot be done for this run."""
        self._journal.not_covered(what, why)

    def failure(self, where: str, error: Exception) -> None:
        """Write down that a part of holdfast failed."""
        self._journal.failure(where, error)
