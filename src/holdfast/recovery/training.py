"""Interface that recovery needs of the training; the guard implements it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from ..probes.comparable import Comparability
from ..probes.step_record import StepRecord
from ..records import Kind


class OutlierState(Protocol):
    """Outlier steps of one optimizer: finite and far from typical."""

    agreed_to_clip: bool
    """Whether several ranks have agreed to clip because of an explosion."""

    @property
    def exploding(self) -> bool:
        """Whether an explosion was not long ago."""
        ...

    @property
    def clipping(self) -> bool:
        """Whether norms are being clipped because of an explosion."""
        ...

    def known(self, record: StepRecord) -> bool:
        """The numbers of a step are known; True when an explosion begins or is over."""
        ...

    def forget(self) -> None:
        """Something else is learned from here on."""
        ...

    def learn_anew(self) -> None:
        """The loss has a new level."""
        ...


class Guarded(Protocol):
    """One optimizer under guard."""

    @property
    def index(self) -> int:
        """Its number."""
        ...

    @property
    def detect_only(self) -> str:
        """Why its steps are only watched; empty when they can be skipped."""
        ...

    @property
    def outliers(self) -> OutlierState:
        """Its outliers."""
        ...


class Training(Protocol):
    """The training in this process."""

    @property
    def iteration(self) -> int:
        """The step that was counted last."""
        ...

    @property
    def rank(self) -> int:
        """Of this process."""
        ...

    yet_to_step: set[int]
    """The optimizers that have not stepped in this iteration, and did in the last one."""
    uneven: bool
    """Whether other ranks may take more steps than this one, or fewer."""

    @property
    def comparability(self) -> Comparability:
        """Whether its losses can be compared over time."""
        ...

    @property
    def has_orders(self) -> bool:
        """Whether the process that judges asks for an action."""
        ...

    def orders(self) -> list[dict[str, Any]]:
        """The actions it asks for."""
        ...

    def models(self) -> list[nn.Module]:
        """The models behind all optimizers."""
        ...

    def guards(self) -> Sequence[tuple[Optimizer, Guarded]]:
        """Every optimizer still alive, with its guard."""
        ...

    def restored(self) -> None:
        """Weights, state and buffers were restored: discard what was cached about them."""
        ...

    def run_folder(self) -> Path | None:
        """The folder of the run; None while it is not open."""
        ...

    def record_at(self, step: int, record: Kind) -> None:
        """Write an Event of a step."""
        ...

    def not_covered(self, what: str, why: str) -> None:
        """Report, once, what cannot be done for this run."""
        ...

    def failure(self, where: str, error: Exception) -> None:
        """Record that a part of holdfast failed."""
        ...
