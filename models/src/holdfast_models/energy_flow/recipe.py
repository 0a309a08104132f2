"""``holdfast train energy_flow``: data, model, losses and measures, put together.

Shapes: B batch, E teacher width, K distinct targets, P pieces of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from holdfast.training import Gathered, Place, Recipe, Task

from .assembly import make_model
from .channels import tell_beginning, tell_pass
from .data.pairs import Pairs, PairSets, load_pairs
from .data.provenance import keep_data_facts
from .data.targets import mean_target, spread_of_targets, unit_targets
from .evaluation.compatibility import resume_differences
from .figures.pictures import draw
from .forecast import forecast
from .losses import cosine, embedding_loss, surface_loss
from .model.energy_flow import EnergyFlow, Output
from .model.noise import noise_seed
from .model.settings import PRESETS
from .run_settings import EnergyFlowSettings
from .step_metrics import Stopwatch, flow_numbers, lap
from .text.bridge import BRIDGE_PRESETS
from .text.pieces import PackedPieces
from .text.tokens import Vocabulary

_DRAWN = 8  # samples a picture may show


class Clock:
    """The optimizer step as the model knows it; part of every checkpoint."""

    def __init__(self) -> None:
        self.step = 0

    def stepped(self, step: int) -> None:
        """A step is over."""
        self.step = step

    def state_dict(self) -> dict[str, int]:
        """Plain numbers."""
        return {"step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.step = int(state["step"])


class Sentences(Dataset[Any]):
    """Pairs with their texts as numbers: a batch is (x_BE, y_BE, index_B, in_BP, out_BP)."""

    def __init__(self, pairs: Pairs, vocabulary: Vocabulary) -> None:
        self.pairs = pairs
        indices = range(len(pairs))
        self._in = PackedPieces((pairs.text(index).input for index in indices), vocabulary)
        self._out = PackedPieces((pairs.text(index).target for index in indices), vocabulary)

    @property
    def bytes(self) -> int:
        """Of the texts as numbers."""
        return self._in.bytes + self._out.bytes

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        x_E, y_E, index = self.pairs[index]
        one = torch.tensor([index], device="cpu")
        return x_E, y_E, index, self._in.rows(one)[0], self._out.rows(one)[0]

    def __getitems__(self, indices: Sequence[int]) -> Gathered:
        """A whole batch at once."""
        batch = self.pairs.__getitems__(indices).batch
        index_B = batch[2]
        return Gathered((*batch, self._in.rows(index_B), self._out.rows(index_B)), len(index_B))


class Objective:
    """Loss and measures of one run; calls the model it is given, which may be wrapped.

    Args:
        model: the bare model, for the parts that are not its forward pass.
        settings: of the run.
        sets: training targets give the mean, held-out ones the candidates.
        clock: the optimizer step.
        place: this rank, which has noise of its own.
    """

    def __init__(
        self,
        model: EnergyFlow,
        settings: EnergyFlowSettings,
        sets: PairSets,
        clock: Clock,
        place: Place,
    ) -> None:
        self._model, self._settings, self._clock, self._place = model, settings, clock, place
        self._seed = noise_seed(settings.train.seed.seed, place.rank)
        self._stopwatch = Stopwatch(place.device)
        mean_E = mean_target(sets.train)
        self._variance = spread_of_targets(sets.validation, mean_E)
        self._candidates_KE = unit_targets(sets.validation)

    def loss(
        self, net: nn.Module, batch: tuple[Tensor, ...]
    ) -> tuple[Tensor, dict[str, Tensor | float]]:
        """The loss of a batch, and what is told beside it."""
        x_BE, y_BE = batch[:2]
        settings, model, step = self._settings, self._model, self._clock.step
        laps = self._stopwatch.begin(step)
        # A compiled model must see the same arguments in every step.
        inside = laps if model._compiled_call_impl is None else None
        with lap(laps, "energy"):
            out: Output = net(x_BE, step=step, seed=self._seed, laps=inside)
            energy = embedding_loss(out.y_BE, y_BE, settings.loss)
            if settings.loss.surface:
                target_BS = model.input(y_BE).flatten(1)
                energy = energy + settings.loss.surface * surface_loss(
                    out.out_BS, target_BS, settings.loss
                )
        total = energy
        reported: dict[str, Tensor | float] = {"cosine": cosine(out.y_BE, y_BE)}
        if model.bridge is not None and len(batch) == 5:
            with lap(laps, "text"):
                text, parts = model.bridge.loss(
                    batch[3],
                    out.surface_BHW,
                    batch[4],
                    out.out_BS,
                    step=step,
                    whole=self._place.world > 1,
                )
            total = total + text
            pad = model.bridge.vocabulary.pad
            reported |= parts | {"tokens": (batch[3] != pad).sum() + (batch[4] != pad).sum()}
        reported |= {"total_loss": total.detach(), "energy_loss": energy.detach()}
        if out.flows is not None:
            reported |= flow_numbers(out.flows.stats)
            tell_pass(model, out, step=step, seed=self._seed)
        return total, reported | self._stopwatch.take()

    def measure(self, net: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """Measures of a held-out batch, each a mean over its samples."""
        x_BE, y_BE = batch[:2]
        out: Output = net(x_BE, step=self._clock.step)
        if self._candidates_KE.device != y_BE.device:
            self._candidates_KE = self._candidates_KE.to(y_BE.device)
        unit_BE = nn.functional.normalize(out.y_BE, dim=-1)
        similar_BK = unit_BE @ self._candidates_KE.mT
        own_B1 = (unit_BE * nn.functional.normalize(y_BE, dim=-1)).sum(-1, keepdim=True)
        # The right one is among the candidates, or would be one more: nobody else may be as near,
        # but for rounding.
        rank_B = (similar_BK > own_B1 + 1e-6).sum(1) + 1
        return {
            "loss": embedding_loss(out.y_BE, y_BE, self._settings.loss),
            "cosine": cosine(out.y_BE, y_BE),
            "fvu": (out.y_BE - y_BE).square().sum(-1).mean() / self._variance,
            "r1": (rank_B == 1).float().mean(),
            "mrr": (1.0 / rank_B).mean(),
        }

    def predict(self, net: nn.Module, batch: tuple[Tensor, ...]) -> dict[str, Tensor]:
        """The embedding that the model maps each input to."""
        out: Output = net(batch[0], step=self._clock.step)
        return {"y_BE": out.y_BE}


def build(settings: EnergyFlowSettings, place: Place) -> Task:
    """Data, vocabulary, model."""
    sets = load_pairs(settings.data)
    if place.main and sets.teacher is not None:
        print(f"teacher {sets.teacher.name}: {len(sets.train)} pairs to train on")
    model = make_model(settings.model, settings.bridge, sets.train, core=settings.core)
    train, held_out = sets.train, sets.validation
    if model.bridge is not None:
        words = model.bridge.vocabulary
        train, held_out = Sentences(train, words), Sentences(held_out, words)
    texts = [part.bytes for part in (train, held_out) if isinstance(part, Sentences)]
    seeds = noise_seed(settings.train.seed.seed, place.rank), settings.data.seed
    tell_beginning(sets, model, seeds=seeds, text=sum(texts))
    clock = Clock()
    objective = Objective(model, settings, sets, clock, place)
    sets.expect_shuffled_reads()
    return Task(
        model=model,
        loss=objective.loss,
        train=train,
        validation=held_out,
        measure=objective.measure,
        predict=objective.predict,
        state={"clock": clock},
        stepped=clock.stepped,
        opened=lambda folder: keep_data_facts(folder, sets, model.bridge),
        ended=_painter(model, sets.validation, clock) if settings.pictures else None,
    )


def _painter(model: EnergyFlow, pairs: Pairs, clock: Clock) -> Callable[[Path], None]:
    """Draws the trained model on its first held-out pairs."""

    def paint(run_folder: Path) -> None:
        batch = pairs.__getitems__(range(min(len(pairs), _DRAWN))).batch
        draw(model, batch, run_folder, step=clock.step)

    return paint


_BATCHES = {  # samples at once, micro-batches to a step
    "debug": (8, 1),
    "experiment": (16, 4),
    "optimized": (32, 1),
    "exp50": (16, 1),
    "max80": (64, 4),
}

# Passes over the data; debug is to end soon, whatever there is.
_LENGTHS: Mapping[str, Any] = {"debug": {"train.steps": 200, "train.validation.batches": 16}}
_LONG: Mapping[str, Any] = {"train.epochs": 4, "train.steps": None}

# Data that lie on a plane themselves, and a lattice that takes them as they are.
_FIELDS: Mapping[str, Any] = {
    "data": {"source": "fields", "task": "transport", "split": "pair", "count": 500, "width": 144},
    "model": {
        "width": 144,
        "lattice": {"width": 12, "height": 12, "depth": 4},
        "carrier": {"hidden": 32, "layers": 1},
        "mapper": {"form": "linear"},
    },
    "bridge": {"on": False},
    "train": {"steps": 400},
}

RECIPE = Recipe(
    name="energy_flow",
    summary="a lattice of recurrent energy carriers that maps one sentence to another",
    settings=EnergyFlowSettings,
    build=build,
    forecast=forecast,
    compare=resume_differences,
    presets={
        name: {
            "model": model,
            "bridge": BRIDGE_PRESETS[name],
            "train": {"data": {"batch": _BATCHES[name][0]}, "accumulate": _BATCHES[name][1]},
            **_LENGTHS.get(name, _LONG),
        }
        for name, model in PRESETS.items()
    }
    | {"fields": _FIELDS},
)
