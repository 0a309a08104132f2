"""A training step that leaves no trace, for trying out how large a batch may be."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from ...checkpoint import rng
from ...errors import UsageError
from ...run.host_memory import ran_out


class TrialStep:
    """One training step on a copy of the model, for ``find_batch``.

    The copy takes memory of its own beside the model, as the average of the weights would. It
    is not compiled.

    Args:
        model: what is copied; of a ``DistributedDataParallel`` what is inside it.
        loss: ``loss(model, batch)``, a scalar or a tuple that begins with one.
        make_optimizer: makes the optimizer of the copy.
        batch_of: a batch of the size asked for, where the model is; see ``resized``.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[nn.Module, Any], Any],
        make_optimizer: Callable[[nn.Module], Optimizer],
        batch_of: Callable[[int], Any],
    ) -> None:
        self._model = model.module if isinstance(model, DistributedDataParallel) else model
        self._loss = loss
        self._make_optimizer = make_optimizer
        self._batch_of = batch_of
        self._copy: tuple[nn.Module, Optimizer] | None = None

    def __call__(self, size: int) -> None:
        """Forward, backward and an optimizer step; the random state is as before."""
        rolled = rng.state()
        try:
            if self._copy is None:
                self._copy = self._copied()
            model, optimizer = self._copy
            loss = self._loss(model, self._batch_of(size))
            (loss[0] if isinstance(loss, tuple) else loss).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        except BaseException:
            self._copy = None
            raise
        finally:
            rng.put_back(rolled)

    def _copied(self) -> tuple[nn.Module, Optimizer]:
        try:
            model = copy.deepcopy(self._model).train()
        except Exception as error:
            if ran_out(error):
                raise
            raise UsageError(
                f"batch size: the model cannot be copied ({error}); set data.batch yourself"
            ) from None
        model.zero_grad(set_to_none=True)
        return model, self._make_optimizer(model)


def resized(batch: Any, size: int) -> Any:
    """A batch with ``size`` samples: those of ``batch``, over and over.

    >>> resized({"x": torch.tensor([1, 2, 3]), "name": "a"}, 5)
    {'x': tensor([1, 2, 3, 1, 2]), 'name': 'a'}
    """
    if isinstance(batch, Tensor):
        if batch.ndim == 0:
            return batch
        return batch[torch.arange(size, device=batch.device) % len(batch)]
    if isinstance(batch, Mapping):
        return {key: resized(value, size) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        values = [resized(value, size) for value in batch]
        named = getattr(batch, "_make", None)
        return named(values) if named else type(batch)(values)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
        return dataclasses.replace(batch, **{k: resized(v, size) for k, v in fields.items()})
    return batch
