"""What is trained: the one thing a recipe has to make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from ..errors import UsageError

Scalars = Mapping[str, Tensor | float]
Loss = Callable[[nn.Module, Any], "Tensor | tuple[Tensor, Scalars]"]
"""``loss(model, batch)``: a scalar, the mean over the samples of the batch; with it, if you
like, further numbers by name, which are averaged and shown."""

TOKENS = "tokens"
"""Among these numbers: how many tokens the batch holds, without padding; not averaged, but shown
as tokens per second."""

Predict = Callable[[nn.Module, Any], Mapping[str, Tensor]]
"""``predict(model, batch)``: tensors by name, one row for each sample of the batch."""

Summarize = Callable[[Mapping[str, Tensor]], Mapping[str, float]]
"""``summarize(rows)``: numbers of all samples of a validation, from their rows by name."""

Data = Dataset[Any] | Iterable[Any]
"""A dataset, which the trainer loads as its settings say, or a loader of your own."""


@dataclass(kw_only=True)
class Task:
    """Model, loss and data, and what else belongs to a run.

    Args:
        model: what is trained; made on the CPU, the trainer moves it.
        loss: see ``Loss``. Calls the model it is given (``model(x)``): with several ranks that
            one is wrapped.
        train: what it is trained on.
        validation: what it is measured on; None: nothing is.
        measure: ``measure(model, batch)`` for validation, numbers by name, "loss" among them;
            ``loss`` by default. With ``summarize`` it may give rows as well: tensors whose first
            dimension is the samples of the batch.
        summarize: ``summarize(rows)``, numbers made of the rows of all samples of all ranks, on
            the CPU: percentiles, ratios of sums. They join the numbers of the validation. Called
            on every rank with the same rows, in the order of ranks.
        headline: numbers of a validation that lines for people name, in this order; all by
            default. The record has them all.
        predict: ``predict(model, batch)``, what the trained model says about each sample, as
            tensors by name; ``holdfast predict`` writes them.
        collate: makes a batch of samples, where the trainer makes the loader.
        state: what else is to be saved and resumed, by name (``state_dict``/``load_state_dict``).
        prepared: called with the optimizer when it is made and the model is in its place, before
            anything is resumed: for what goes by the learning rate.
        stepped: called after every optimizer step with its number, from 1; of a step that was
            skipped, too. May change buffers, and answers True where something else is learned
            from here on, so that the loss may jump.
        validated: called after every validation with the step and the numbers.
        opened: called with the run folder before the first step, on the first rank; may refuse to
            go on in it. Called of a run that is resumed, too.
        improved: called with the run folder and the step after a validation that is the best so
            far and is saved, on the first rank, while the others wait; may leave pictures there.
            The model has its averaged weights, if averaging is on, and is in evaluation mode;
            gradients by ``torch.autograd.grad``, which leaves none behind. Skipped where it would
            take more than a tenth of the time since its last call. An error in it is a line.
        ended: called with the run folder when training is over and its record is on disk, on the
            first rank, before the report is made; may leave pictures there. An error in it is a
            line.
    """

    model: nn.Module
    loss: Loss
    train: Data
    validation: Data | None = None
    measure: Callable[[nn.Module, Any], Scalars] | None = None
    summarize: Summarize | None = None
    headline: tuple[str, ...] = ()
    predict: Predict | None = None
    collate: Callable[[list[Any]], Any] | None = None
    state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    prepared: Callable[[Optimizer], None] | None = None
    stepped: Callable[[int], bool | None] | None = None
    validated: Callable[[int, Mapping[str, float]], None] | None = None
    opened: Callable[[Path], None] | None = None
    improved: Callable[[Path, int], None] | None = None
    ended: Callable[[Path], None] | None = None


def split(result: Tensor | tuple[Tensor, Any]) -> tuple[Tensor, dict[str, Any]]:
    """The loss and the numbers beside it."""
    loss, extra = result if isinstance(result, tuple) else (result, {})
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        shown = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise UsageError(
            f"the loss function returned {shown}, not a scalar tensor; "
            "return the mean over the batch, or (loss, {name: number})"
        )
    return loss.reshape(()), dict(extra)
