"""What a run leaves for people: plots, tables and predictions, at each new best and at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import Dataset

from .run_settings import AnyRun


class Artifacts:
    """Draws a run; nothing here may end a training."""

    def __init__(
        self,
        kind: str,
        model: nn.Module,
        settings: AnyRun,
        validation: Dataset[Any],
        objective: Any,
    ) -> None:
        self._kind, self._model, self._settings = kind, model, settings
        self._validation, self._objective = validation, objective

    def improved(self, folder: Path, step: int) -> None:
        """A validation was the best so far."""

    def ended(self, folder: Path) -> None:
        """Training is over."""
