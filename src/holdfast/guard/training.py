"""Interface of the guard for recovery, watchers and investigations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ..diagnosis.nonfinite.provenance import Scene
from ..probes.batches import Batch
from .optimizer_guard import OptimizerGuard
from .registry import OptimizerRegistry
from .step_writer import StepWriter


class GuardedTraining:
    """The training in this process."""

    def __init__(self, registry: OptimizerRegistry, writer: StepWriter) -> None:
        self._registry, self._writer = registry, writer

    @property
    def iteration(self) -> int:
        """The step that was counted last."""
        return self._writer.iteration

    @property
    def rank(self) -> int:
        """Of this process."""
        return self._writer.lane.rank

    @property
    def has_orders(self) -> bool:
        """Whether the process that judges asks for an action."""
        return self._writer.lane.has_orders

    def orders(self) -> list[dict[str, Any]]:
        """The actions it asks for."""
        return self._writer.lane.orders()

    def models(self) -> list[nn.Module]:
        """The models behind all optimizers."""
        return self._registry.models()

    def optimizers(self) -> list[tuple[Optimizer, Sequence[str]]]:
        """Every optimizer still alive, with the names of its parameters in their order."""
        return [(optimizer, guard.layers) for optimizer, guard in self._registry.all()]

    def guards(self) -> list[tuple[Optimizer, OptimizerGuard]]:
        """Every optimizer still alive, with its guard."""
        return self._registry.all()

    def restored(self) -> None:
        """Weights, state and buffers were restored: discard what was cached about them."""
        self._registry.restored()

    def has_bad_gradient(self) -> bool:
        """Whether any gradient on the CPU is non-finite."""
        return self._registry.bad_gradient()

    def scene(self, batches: Sequence[Batch], rng: Tensor | None, loss: Tensor | None) -> Scene:
        """Inputs of an investigation of a bad step."""
        return self._registry.scene(batches, rng, loss)

    def run_folder(self) -> Path | None:
        """The folder of the run; None while it is not open."""
        return self._writer.lane.run_folder()

    def record(self, kind: str, data: Mapping[str, Any]) -> None:
        """Write a measurement down as an Event of the next step: this one's row is written."""
        self._writer.tell(kind, self._writer.iteration + 1, dict(data))

    def record_at(self, kind: str, step: int, data: Mapping[str, Any]) -> None:
        """Write an Event of a step."""
        self._writer.tell(kind, step, dict(data))

    def not_covered(self, what: str, why: str) -> None:
        """Report, once, what cannot be done for this run."""
        self._writer.not_covered(what, why)

    def failure(self, where: str, error: Exception) -> None:
        """Record that a part of holdfast failed."""
        self._writer.failure(where, error)
