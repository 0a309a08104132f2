"""A recipe of one's own: a settings class and a function.

    holdfast train examples/own_recipe.py
    holdfast train examples/own_recipe.py --set width=256 --set train.steps=500
    holdfast train examples/own_recipe.py --set train.graph=true     # a GPU: passes as CUDA graphs

It learns the sum of the squares of eight numbers. On a GPU a network this small waits for the host,
which launches some hundred kernels a step; with ``train.graph`` it launches two graphs instead.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from holdfast import Section, bounded
from holdfast.training import (
    DataSettings,
    OptimizerSettings,
    Place,
    Recipe,
    Task,
    TrainSettings,
)

TRAIN = TrainSettings(
    epochs=4,
    clip=100.0,
    data=DataSettings(batch=64, drop_last=True),
    optimizer=OptimizerSettings(lr=1e-3),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(Section):
    """Everything that can be set."""

    width: int = bounded(64, 1)
    layers: int = bounded(8, 1)
    train: TrainSettings = TRAIN


class Net(nn.Module):
    """Layers with a way around each of them."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.first = nn.Linear(8, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())
            for _ in range(layers)
        )
        self.last = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One number for each row."""
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.last(x)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The mean square, and the mean distance beside it."""
    x, y = batch
    off = model(x) - y
    return off.square().mean(), {"distance": off.detach().abs().mean()}


def rows(count: int, seed: int) -> TensorDataset:
    """Numbers and the sums of their squares."""
    x = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x.square().sum(1, keepdim=True))


def build(settings: Settings, place: Place) -> Task:
    """Model, loss and data."""
    return Task(
        model=Net(settings.width, settings.layers),
        loss=loss,
        train=rows(4096, seed=1),
        validation=rows(512, seed=2),
    )


RECIPE = Recipe(
    name="own", summary="the sum of the squares of eight numbers", settings=Settings, build=build
)
