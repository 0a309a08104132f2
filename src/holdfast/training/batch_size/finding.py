"""The largest batch of a task that fits: ``holdfast train RECIPE --find-batch``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils.data import Dataset

from ...errors import UsageError
from ..data.loaders import EpochLoaders
from ..data.transfer import Transfer
from ..device import Place
from ..optimizers import make_optimizer
from ..precision import Precision
from ..recompute import keep_activations, recompute
from ..settings import TrainSettings
from ..task import Task
from .searching import SearchResult, find_batch
from .trial_step import TrialStep, resized


def largest_batch(
    task: Task,
    settings: TrainSettings,
    place: Place,
    say: Callable[[str], None],
    limit: int | None = None,
) -> SearchResult:
    """Try steps of growing size on a copy of the model; the task is as before.

    Args:
        task: its model is moved to the device, and stays there.
        settings: precision, optimizer and recomputation count.
        place: where; with several ranks, of each of them.
        say: called with every size.
        limit: no larger size is tried; the number of samples by default.
    """
    if limit is None:
        if not isinstance(task.train, Dataset) or not hasattr(task.train, "__len__"):
            raise UsageError("the data has no length; give the largest size to try")
        limit = len(task.train)  # type: ignore[arg-type]
    model = task.model.to(place.device)
    precision = Precision(settings.precision, place.device, settings.holdfast.scaler)
    epoch_loaders = EpochLoaders(task, settings, place, say)
    try:
        sample = Transfer(place.device)(next(iter(epoch_loaders.epoch(0))))
    finally:
        epoch_loaders.close()

    def loss(net: nn.Module, batch: Any) -> Any:
        with precision.autocast():
            return task.loss(net, batch)

    trial = TrialStep(
        model,
        loss,
        lambda copied: make_optimizer(copied, settings.optimizer, place.device),
        lambda size: resized(sample, size),
    )
    recompute(model, settings.recompute)
    try:
        # Not from 1: normalisation over a batch needs two.
        return find_batch(trial, limit=limit, say=say, start=min(2, limit), device=place.device)
    finally:
        keep_activations(model)
