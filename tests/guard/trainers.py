"""Steps in the order in which trainers of frameworks make them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


def ahead(batches: Iterable[T]) -> Iterator[T]:
    """Each batch once the next one is there."""
    rest = iter(batches)
    current = next(rest)
    for following in rest:
        yield current
        current = following
    yield current


class Accelerated:
    """As Accelerate and Transformers' Trainer do: fetched ahead, two groups, divided, clipped.

    Args:
        model: to be trained.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        decays = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() <= 1]
        groups = [{"params": decays, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-2, fused=True)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: 1 / (1 + n))

    def steps(self, batches: Iterable[Tensor], besides: Callable[[int], None]) -> Iterator[Tensor]:
        """The loss of every step, as a callback reads it."""
        for step, x in enumerate(ahead(batches)):
            self.model.train()
            loss = self._training_step(x)
            besides(step)
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.01)
            self.optimizer.step(None)
            self._schedule.step()
            self.model.zero_grad()
            yield loss

    def _training_step(self, x: Tensor) -> Tensor:
        loss = self.model(x).square().mean()
        loss = loss / 1
        self._backward(loss)
        return loss.detach()

    def _backward(self, loss: Tensor) -> None:
        loss = loss / 2
        loss.backward()


class OwnKind(torch.optim.AdamW):
    """Nobody knows what it does with gradients from before its closure."""


class Closing:
    """As Lightning does: the optimizer calls for its gradients.

    Args:
        model: to be trained.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = OwnKind(model.parameters(), lr=1e-2, fused=True)

    def steps(self, batches: Iterable[Tensor], besides: Callable[[int], None]) -> Iterator[Tensor]:
        """The loss of every step."""
        for step, x in enumerate(batches):
            yield self.step(functools.partial(self._training_step, x, step, besides), step)

    def step(self, closure: Callable[[], Tensor], step: int) -> Tensor:
        """Its loss."""
        read = self.optimizer.step(closure=closure)
        assert isinstance(read, Tensor)
        return read

    @torch.enable_grad()
    def _training_step(self, x: Tensor, step: int, besides: Callable[[int], None]) -> Tensor:
        loss = self.model(x).square().mean() / 1
        read = loss.detach()
        self.optimizer.zero_grad()
        loss.backward()
        besides(step)
        return read


Trainer = type[Accelerated] | type[Closing]
