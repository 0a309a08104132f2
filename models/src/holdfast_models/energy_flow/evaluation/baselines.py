"""What a run has to beat: networks without a lattice, trained as the run was.

Shapes: B batch, E teacher width, H and W the sides of a field.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from holdfast import HoldfastError
from holdfast.training import Place, Recipe, Task, load_weights, run_recipe

from ..assembly import make_model
from ..data.pairs import PairSets
from ..model.energy_flow import Output
from ..recipe import RECIPE, build
from ..run_settings import EnergyFlowSettings
from .loading import Loaded

__all__ = [
    "ComparedNetwork",
    "Convolutions",
    "baselines_of",
    "build_convolutions",
    "expected_seconds",
    "train_baseline",
]

_TRAINER = 0.004  # seconds of a step beside the network: loader, optimizer, guard


class Convolutions(nn.Module):
    """What one would take for fields without a second thought: five 3 x 3, 32 wide, residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.side = math.isqrt(width)
        parts: list[nn.Module] = [nn.Conv2d(1, 32, 3, padding=1), nn.GELU()]
        for _ in range(3):
            parts += [nn.Conv2d(32, 32, 3, padding=1), nn.GELU()]
        self.net = nn.Sequential(*parts, nn.Conv2d(32, 1, 3, padding=1))

    def forward(self, x_BE: Tensor, **how: object) -> Output:
        """As the lattice is called; step, seed and laps change nothing here."""
        field_BHW = x_BE.view(-1, self.side, self.side) * self.side
        y_BE = (field_BHW + self.net(field_BHW[:, None])[:, 0]).flatten(1) / self.side
        return Output(y_BE, field_BHW, y_BE, None)


def build_convolutions(settings: EnergyFlowSettings, place: Place) -> Task:
    """The task of the recipe with convolutions in place of mappers and lattice."""
    task = build(settings, place)
    return dataclasses.replace(task, model=Convolutions(settings.model.width), ended=None)


class ComparedNetwork(NamedTuple):
    """A network to be trained beside a run.

    Args:
        name: as the table shows it.
        recipe: trains it.
        settings: those of the run, without a lattice.
        make: the same network, for its weights.
    """

    name: str
    recipe: Recipe
    settings: EnergyFlowSettings
    make: Callable[[PairSets], nn.Module]


def baselines_of(loaded: Loaded) -> list[ComparedNetwork]:
    """The mappers alone and, for data that lie on a plane, convolutions."""
    device = next(loaded.model.parameters()).device
    settings = dataclasses.replace(
        loaded.settings,
        core=False,
        pictures=False,
        train=dataclasses.replace(loaded.settings.train, device=str(device)),
    )
    found = [
        ComparedNetwork(
            "mappers alone",
            RECIPE,
            settings,
            lambda sets: make_model(settings.model, settings.bridge, sets.train, core=False),
        )
    ]
    if settings.data.source == "fields":
        # They have no surface that a loss could be taken on.
        no_surface = dataclasses.replace(settings.loss, surface=0.0)
        found.append(
            ComparedNetwork(
                "five convolutions",
                dataclasses.replace(RECIPE, build=build_convolutions),
                dataclasses.replace(settings, loss=no_surface),
                lambda sets: Convolutions(sets.train.width),
            )
        )
    return found


def expected_seconds(baseline: ComparedNetwork, sets: PairSets) -> tuple[int, float]:
    """Optimizer steps of its training, and about how long they take: three of them are tried."""
    train = baseline.settings.train
    whole = train.data.batch * train.accumulate
    each = math.ceil(len(sets.train) / whole)
    limits = [train.steps, None if train.epochs is None else train.epochs * each]
    steps = min(limit for limit in limits if limit is not None)
    model = baseline.make(sets).to(train.device)
    first = sets.train.__getitems__(range(min(train.data.batch, len(sets.train)))).batch
    x_BE, y_BE = (part.to(train.device) for part in first[:2])
    times: list[float] = []
    for _ in range(3):
        began = time.perf_counter()
        (model(x_BE).y_BE - y_BE).square().sum().backward()
        float(x_BE.sum())  # waits for a GPU
        times.append(time.perf_counter() - began)
    return steps, steps * (min(times) * train.accumulate + _TRAINER)


def train_baseline(baseline: ComparedNetwork, sets: PairSets) -> nn.Module:
    """Train it like a run of its own; the weights best in validation, in evaluation mode."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        code = run_recipe(baseline.recipe, baseline.settings, run_dir=f"{folder}/run", quiet=True)
        if code:
            raise HoldfastError(f"{baseline.name}: training was interrupted; call eval again")
        model = baseline.make(sets)
        load_weights(model, f"{folder}/run", best=True)
    return model.to(torch.device(baseline.settings.train.device)).eval()
