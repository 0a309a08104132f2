"""What a run leaves for people: plots, tables and predictions, at each new best and at the end.

Everything is made of one pass over the validation events; nothing here may end a training.

Shapes: B events, S sensors, R hidden sensors.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sized
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from holdfast import HoldfastError
from holdfast.training import Place, Task, load_weights, predict

from .assembly import Objective
from .data.batches import inputs_of
from .data.normalization import NOT_AVAILABLE, Inputs, time_from_scale
from .evaluation.saliency import face_weights, saliency
from .evaluation.scoring import score_hidden
from .evaluation.worst import WorstEvents
from .export import export
from .geometry.layout import face_of_sensor
from .loading import load_run
from .model.fillings import baselines
from .model.masking import valid_of
from .model.regressor import Regressor
from .objectives.reconstruction import ReconstructionObjective
from .predictions.columns import physical
from .run_settings import AnyRun
from .verification import verify

if TYPE_CHECKING:
    from ..drawing import Drawn
    from .figures.pictures import Maker

MOST_EVENTS, MOST_FILLED = 20_000, 1000
"""Validation events that pictures are made of: of the regressor, and of models that fill in, which
keep every sensor of them."""
_PICTURES, _TABLES = "pictures", "tables"
_WORST_DRAWN, _KEPT = 5, 128
_EARLY = 300.0  # seconds in which nothing is drawn: a run that ends so soon is drawn then
_RAW = ("npho_raw", "time_raw")


class PredictionRows:
    """Collects what a model says about events, and keeps a few of the events themselves."""

    entries = 0

    def __init__(self) -> None:
        self._parts: dict[str, list[Tensor]] = {}
        self.worst = WorstEvents()
        self.first: dict[str, Tensor] = {}
        self._seen = 0

    def append(self, predictions: Mapping[str, Tensor], entries: int) -> None:
        """One batch."""
        said = dict(predictions)
        events = {name: said.pop(name) for name in _RAW if name in said}
        if "loss_row" in said:
            index_B = torch.arange(self._seen, self._seen + entries)
            named = {"npho": events["npho_raw"], "time": events["time_raw"], **said}
            self.worst.offer(said["loss_row"], index_B, named)
        if not self.first:
            self.first = {name: one[:_KEPT].clone() for name, one in (events | said).items()}
        for name, one in said.items():
            self._parts.setdefault(name, []).append(one)
        self._seen += entries

    def columns(self) -> dict[str, Tensor]:
        """All of it."""
        return {name: torch.cat(parts) for name, parts in self._parts.items()}

    def keep(self) -> None:
        """Nothing is on disk."""

    def close(self, *, finished: bool) -> None:
        """Nothing is open."""


class Artifacts:
    """Makes them.

    Args:
        model: as it is when one of the methods is called.
        settings: of the run.
        validation: events.
        objective: says what the model makes of a batch.
    """

    def __init__(
        self, model: nn.Module, settings: AnyRun, validation: Dataset[Any], objective: Objective
    ) -> None:
        self._model, self._settings = model, settings
        self._validation, self._objective = validation, objective
        self._began = time.monotonic()

    def improved(self, folder: Path, step: int) -> None:
        """A validation was the best so far."""
        if self._settings.output.artifacts and time.monotonic() - self._began > _EARLY:
            self._draw(folder, f"_step{step}")

    def ended(self, folder: Path) -> None:
        """Training is over: the same of the best weights, predictions, and the exported model."""
        output = self._settings.output
        with self._best_weights(folder) as checkpoint:
            if output.artifacts:
                self._draw(folder, "")
            if output.predictions:
                self._write_predictions(folder)
            if self._settings.kind == "reg" and output.onnx is not None:
                self._export(folder, output.onnx, checkpoint)

    @contextlib.contextmanager
    def _best_weights(self, folder: Path) -> Iterator[Path]:
        held = {name: one.detach().cpu().clone() for name, one in self._model.state_dict().items()}
        try:
            yield load_weights(self._model, folder)
        finally:
            self._model.load_state_dict(held)

    def _pass(
        self,
        look: Callable[[nn.Module, Any], Mapping[str, Tensor]],
        rows: Any,
        most: int | None = None,
    ) -> None:
        task = Task(model=self._model, loss=_no_loss, train=self._validation, predict=look)
        last = None if most is None else min(most, len(cast(Sized, self._validation)))
        place = Place(next(self._model.parameters()).device)
        train = self._settings.train
        predict(task, train, rows, data=self._validation, entries=(0, last), place=place)

    # ------------------------------------------------------------------ pictures

    def _draw(self, folder: Path, suffix: str) -> None:
        from .figures.pictures import need_matplotlib, write_pictures

        need_matplotlib()
        makers = (
            self._of_regressor(folder, suffix)
            if self._settings.kind == "reg"
            else self._of_hidden()
        )
        from .figures.learning import learning_curves

        makers = {"learning curves": partial(learning_curves, folder), **makers}
        written = write_pictures(folder / _PICTURES, makers, suffix=suffix)
        for line in written.failed:
            print(f"no picture of {line}")

    def _of_regressor(self, folder: Path, suffix: str) -> dict[str, Maker]:
        from .figures.detector_figures import face_weights_figure, saliency_profile
        from .figures.event_display import event_display, event_of
        from .figures.resolution_figures import resolution
        from .figures.tables import read_tables, write_tables

        rows = PredictionRows()
        self._pass(self._look_at_regression, rows, MOST_EVENTS)
        write_tables(folder / _TABLES, rows.columns(), suffix=suffix)
        tables = read_tables(folder / _TABLES, suffix=suffix)
        makers: dict[str, Maker] = {
            f"resolution of {task}": partial(resolution, task, table)
            for task, table in tables.items()
        }
        for place, bad in enumerate(rows.worst.worst()[:_WORST_DRAWN], 1):
            event = event_of(bad.arrays, loss=bad.loss)
            name = f"worst_events/worst_{place:02d}"
            makers[name] = partial(event_display, event, name=name)
        model = cast(Regressor, self._model)
        inputs = self._inputs_of(rows)

        def look() -> Drawn:
            nothing_BS = torch.zeros_like(inputs.npho_valid_BS)
            found = saliency(model, inputs.x_BSC, nothing_BS, valid_of(inputs))
            return saliency_profile(found.outputs, found.shares_KFC.numpy())

        weights = face_weights(dict(model.heads.items()), model.encoder.tokens)
        return (
            makers
            | {
                "saliency": look,
                "face weights": partial(face_weights_figure, weights, model.encoder.tokens),
            }
            | self._of_inputs(inputs)
        )

    def _of_hidden(self) -> dict[str, Maker]:
        from .figures import hidden_figures

        rows = PredictionRows()
        self._pass(self._look_at_hidden, rows, MOST_FILLED)
        first = {name: one.numpy() for name, one in rows.first.items()}
        makers: dict[str, Maker] = {
            "reconstruction": lambda: hidden_figures.reconstruction(
                first["truth"][0], first["hidden"][0], first["predicted"][0]
            )
        }
        found = rows.columns()
        kind, truth_BS, hidden_BS = self._settings.kind, found.pop("truth"), found.pop("hidden")
        said = {kind: found.pop("predicted"), **found}

        def residuals() -> Drawn:
            truth_R, pred_R = (one[hidden_BS].numpy() for one in (truth_BS, said[kind]))
            face_R = face_of_sensor()[hidden_BS.nonzero()[:, 1].numpy()]
            return hidden_figures.residuals(truth_R, pred_R, face_R)

        makers["residuals"] = residuals
        makers["baselines"] = lambda: hidden_figures.baselines(
            score_hidden(truth_BS, hidden_BS, said)
        )
        return makers | self._of_inputs(self._inputs_of(rows))

    def _of_inputs(self, inputs: Inputs) -> dict[str, Maker]:
        from .figures.detector_figures import dead_channels, input_distributions

        x, npho_valid, time_valid = (one.cpu().numpy() for one in inputs[:3])
        return {
            "dead channels": partial(dead_channels, ~npho_valid),
            "input distributions": partial(input_distributions, x, npho_valid, time_valid),
        }

    def _inputs_of(self, rows: PredictionRows) -> Inputs:
        """The first events, as the model sees them."""
        device = next(self._model.parameters()).device
        raw = {"npho": rows.first["npho_raw"].to(device), "time": rows.first["time_raw"].to(device)}
        return inputs_of(raw, self._settings.normalization)

    # ------------------------------------------------------------------ what a batch says

    def _look_at_regression(self, net: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        said = self._objective.measure(net, batch)
        inputs = inputs_of(batch, self._settings.normalization)
        return {name: one for name, one in said.items() if one.dim()} | self._raw(inputs)

    def _look_at_hidden(self, net: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Photons of every sensor: true, predicted and filled by the baselines."""
        objective = cast(ReconstructionObjective, self._objective)
        done = objective.hide_and_fill(net, batch)
        inputs, normalization = done.inputs, self._settings.normalization
        rows = {
            "truth": torch.where(inputs.npho_valid_BS, inputs.npho_BS, NOT_AVAILABLE),
            "hidden": done.hidden.hidden_BS,
            "predicted": physical(done.pred_BSC[..., 0], normalization, "npho"),
        }
        usable_BS = done.shown.npho_valid_BS
        rows |= baselines(inputs.npho_BS, usable_BS, batch.get("uvwFI"))
        return rows | self._raw(inputs)

    def _raw(self, inputs: Inputs) -> dict[str, Tensor]:
        time_BS = time_from_scale(inputs.x_BSC[..., 1], self._settings.normalization)
        return {
            "npho_raw": torch.where(inputs.npho_valid_BS, inputs.npho_BS, NOT_AVAILABLE),
            "time_raw": torch.where(inputs.time_valid_BS, time_BS, NOT_AVAILABLE),
        }

    # ------------------------------------------------------------------ files

    def _write_predictions(self, folder: Path) -> None:
        from .predictions.root_writer import RootPredictions

        settings = self._settings
        channels = () if self._settings.kind == "reg" else settings.model.predict_channels  # type: ignore[union-attr]
        most = settings.output.max_events if self._settings.kind == "mae" else None
        name = {"reg": "predictions", "mae": "mae_predictions", "inp": "inpainter_predictions"}
        writer = RootPredictions(
            folder / f"{name[self._settings.kind]}.root",
            cast(Any, self._settings.kind),
            settings.normalization,
            channels,
            overwrite=True,
        )
        self._pass(self._objective.predict, writer, most)

    def _export(self, folder: Path, name: str, checkpoint: Path) -> None:
        loaded = load_run(folder)
        export(loaded, folder / name)
        found = verify(loaded, folder / name)
        if not found.ok:
            raise HoldfastError(f"{name} differs from {checkpoint.name}: {found.lines()[-1]}")


def _no_loss(model: nn.Module, batch: Any) -> Tensor:
    raise AssertionError("nothing is trained here")
