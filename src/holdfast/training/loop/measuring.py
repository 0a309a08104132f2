"""The model of a run as it is measured: averaged, in evaluation mode, in the run's precision."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from .. import sharding
from ..averaging import Average
from ..compiling import CompiledModel
from ..data.loaders import EpochLoaders
from ..data.transfer import Transfer, count
from ..device import Place
from ..precision import Precision
from ..task import TOKENS, Scalars, Task, split
from .validation import evaluating, validate


class ModelMeasure:
    """Measures the model of a task on its validation set, its average where there is one."""

    def __init__(
        self,
        task: Task,
        place: Place,
        epoch_loaders: EpochLoaders,
        average: Average | None,
        precision: Precision,
        transfer: Transfer,
        compiled: CompiledModel,
        *,
        batches: int | None,
        sharded: bool = False,
    ) -> None:
        self._task, self._place, self._epoch_loaders = task, place, epoch_loaders
        self._average, self._precision = average, precision
        self._transfer, self._compiled, self._batches = transfer, compiled, batches
        self._sharded = sharded

    def __call__(self) -> dict[str, float]:
        """The numbers of a validation."""
        with self._averaged(), self._gathered():
            return validate(
                self._task.model,
                self._measure,
                self._epoch_loaders.validation(),
                self._place,
                prepare=self._prepare,
                batches=self._batches,
                summarize=self._task.summarize,
                all_ranks=self._sharded,
            )

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Within the block the model is as it is measured, but runs eagerly.

        A sharded one has its averaged weights by ``for_one_rank``, which is around it.
        """
        averaged = contextlib.nullcontext() if self._sharded else self._averaged()
        with averaged, evaluating(self._task.model), self._compiled.paused():
            yield

    @contextlib.contextmanager
    def for_one_rank(self) -> Iterator[None]:
        """Within the block one rank may call the model alone; all of them have to enter it."""
        if not self._sharded:
            yield
            return
        # Gathered weights have the type of the run's precision, as operations then expect.
        with self._averaged(), sharding.whole(self._task.model), self._precision.autocast():
            yield

    @contextlib.contextmanager
    def _gathered(self) -> Iterator[None]:
        """Within the block passes gather other weights than before and after it."""
        try:
            yield
        finally:
            if self._sharded:
                sharding.reshard(self._task.model)

    def _averaged(self) -> contextlib.AbstractContextManager[None]:
        if self._average is None:
            return contextlib.nullcontext()
        return self._average.in_place(self._task.model)

    def _measure(self, model: nn.Module, batch: Any) -> Scalars:
        found = self._compiled.run(self._numbers, batch)
        keep = self._compiled.keep
        return {n: keep(v) if isinstance(v, Tensor) else v for n, v in found.items()}

    def _numbers(self, batch: Any) -> Scalars:
        task = self._task
        with self._precision.autocast():
            if task.measure is not None:
                return task.measure(task.model, batch)
            loss, extra = split(task.loss(task.model, batch))
            extra.pop(TOKENS, None)
            return {"loss": loss, **extra}

    def _prepare(self, batch: Any) -> tuple[Any, int]:
        batch = self._transfer(batch)
        return batch, count(batch)
