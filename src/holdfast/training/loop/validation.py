"""Measuring a model on data it does not learn from."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...config import Section, bounded
from ...errors import UsageError
from .. import distributed
from ..device import Place
from ..task import Scalars, Summarize
from .sample_rows import SampleRows


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValidationSettings(Section):
    """When and how much."""

    epochs: int = bounded(1, 0)  # every so many epochs; 0: not by epochs
    steps: int = bounded(0, 0)  # every so many optimizer steps; 0: not by steps
    batches: int | None = bounded(None, 1)  # look at so many only
    batch: int | None = bounded(None, 1)  # samples at once; that of training by default
    spike: float = bounded(5.0, 0.0)  # so many times its best the metric is a spike; 0: never
    spike_action: Literal["warn", "rollback"] = "warn"


def validate(
    model: nn.Module,
    measure: Callable[[nn.Module, Any], Scalars],
    loader: Iterable[Any],
    place: Place,
    *,
    prepare: Callable[[Any], tuple[Any, int]],
    batches: int | None = None,
    summarize: Summarize | None = None,
    all_ranks: bool = False,
) -> dict[str, float]:
    """The mean of every number over all samples of all ranks, and what is made of their rows.

    Args:
        model: what is measured; in evaluation mode meanwhile, every module as it was afterwards.
        measure: of one batch by name: numbers, each a mean over its samples, and rows, one for
            each sample.
        loader: the batches of this rank.
        place: this rank.
        prepare: brings a batch to the device; how many samples it has.
        batches: look at no more than so many.
        summarize: makes numbers of the rows of all samples.
        all_ranks: no rank can compute alone, so that each takes as many batches as the others.
    """
    sums: dict[str, list[tuple[Tensor | float, int]]] = {}
    rows = SampleRows()
    with evaluating(model), torch.no_grad():
        taken = distributed.in_step(loader, place) if all_ranks else zip(loader, repeat(True))
        for number, (batch, counts) in enumerate(taken):
            if batches is not None and number >= batches:
                break
            batch, count = prepare(batch)
            found = measure(model, batch)
            for name, value in found.items() if counts else ():
                if isinstance(value, Tensor) and value.ndim and summarize is not None:
                    rows.add(name, value, count)
                    continue
                value = value.detach() if isinstance(value, Tensor) else value
                sums.setdefault(name, []).append((_single(name, value), count))
    # Read only now: until here nothing has waited for the device.
    own: dict[str, float] = {}
    for name, pairs in sums.items():
        own[f"{name}/sum"] = sum(float(value) * count for value, count in pairs)
        own[f"{name}/count"] = sum(count for _, count in pairs)
    means = _means(distributed.total(own, place))
    if summarize is None:
        return means
    every = rows.gathered(place, numbers=means)
    if not every:
        return means
    return means | {name: float(value) for name, value in summarize(every).items()}


def _single(name: str, value: Tensor | float) -> Tensor | float:
    if isinstance(value, Tensor) and value.numel() != 1:
        raise UsageError(
            f"measure gave {name} of the shape {tuple(value.shape)}: rows of samples need a "
            "Task(summarize=...) that makes numbers of them; or give their mean"
        )
    return value


def _means(totals: Mapping[str, float]) -> dict[str, float]:
    names = [name.removesuffix("/sum") for name in totals if name.endswith("/sum")]
    return {n: totals[f"{n}/sum"] / totals[f"{n}/count"] for n in names if totals[f"{n}/count"]}


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards each module is in the mode it was in, frozen ones too."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
