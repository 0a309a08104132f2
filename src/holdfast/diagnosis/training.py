"""Interface of the training for watchers and investigations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import nn
from torch.optim import Optimizer

from ..records import Kind


class Training(Protocol):
    """The training in this process, as far as measuring it needs; the guard has one."""

    @property
    def iteration(self) -> int:
        """The step that was counted last."""
        ...

    def models(self) -> list[nn.Module]:
        """The models behind all optimizers."""
        ...

    def known_models(self) -> list[nn.Module]:
        """Those of them that need no search among all live objects (a tenth of a second)."""
        ...

    def optimizers(self) -> list[tuple[Optimizer, Sequence[str]]]:
        """Every optimizer still alive, with the names of its parameters in their order."""
        ...

    def record_at(self, step: int, record: Kind) -> None:
        """Write an Event of a step."""
        ...

    def record(self, record: Kind) -> None:
        """Write a measurement down as an Event of the next step: this one's row is written."""
        ...
