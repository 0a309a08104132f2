"""The regressor's loss, measures and predictions.

Shapes: B events, K components of a quantity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ..data.batches import inputs_of
from ..evaluation.regression_metrics import QUANTITIES
from ..geometry.coordinates import angle_between, direction_of
from ..losses import Balance, elementwise, one_minus_cosine
from ..model.masking import drop_sensors, valid_of
from ..model.regressor import Regressor
from ..model.targets import TargetScale
from ..settings import TaskSettings
from .health_numbers import SensorHealth, target_numbers

if TYPE_CHECKING:
    from ..run_settings import RegressorRun

Batch = Mapping[str, Tensor]

COMPONENTS: Mapping[str, tuple[str, ...]] = {
    **QUANTITIES,
    "angleVec": ("dir_x", "dir_y", "dir_z"),
    "n_gamma": ("n_gamma",),
}
"""What the columns of predictions are called."""
_REFERENCE = ("smooth_l1", "l1", "mse")  # told beside the validation loss, in scaled units


class RegressionObjective:
    """Loss and measures of one run; calls the model it is given, which may be wrapped.

    Args:
        model: the bare model.
        settings: of the run.
    """

    def __init__(self, model: Regressor, settings: RegressorRun) -> None:
        self._model, self._settings = model, settings
        self._tasks = settings.tasks.active()
        self._health = SensorHealth(foreign=settings.init.allow_norm_mismatch)

    def loss(self, net: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        """The weighted loss of all tasks, and what is told beside it."""
        inputs = inputs_of(batch, self._settings.normalization)
        reported = self._health.numbers(inputs) | target_numbers(batch, self._tasks)
        rate = self._settings.model.channel_dropout_rate
        if net.training and rate:
            keys_BS = torch.rand_like(inputs.npho_BS)
            inputs = drop_sensors(inputs, rate, keys_BS, self._settings.normalization)
        losses = self._losses(net(inputs.x_BSC, valid_BSC=valid_of(inputs), scaled=True), batch)
        total = self._total(losses, batch)
        reported |= {f"task/{name}": one.mean().detach() for name, one in losses.items()}
        return total, reported

    def measure(self, net: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The training loss on held-out events, and the columns of their predictions."""
        inputs = inputs_of(batch, self._settings.normalization)
        scaled = net(inputs.x_BSC, valid_BSC=valid_of(inputs), scaled=True)
        losses = self._losses(scaled, batch)
        found = {"loss": self._total(losses, batch)}
        for name in _REFERENCE:
            every = [self._loss_of(task, scaled, batch, name).mean() for task in self._compared()]
            if every:
                found[name] = torch.stack(every).mean()
        loss_B = torch.stack([one.detach() for one in losses.values()]).sum(0)
        rows = self._columns(self._model.physical(scaled), batch)
        return found | {"loss_row": loss_B} | rows

    def predict(self, net: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Predictions beside the truth, in physical units, as columns."""
        inputs = inputs_of(batch, self._settings.normalization)
        return self._columns(net(inputs.x_BSC, valid_BSC=valid_of(inputs)), batch)

    def _losses(self, scaled: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """The loss of each task for each event."""
        return {name: self._loss_of(name, scaled, batch) for name in self._tasks}

    def _loss_of(
        self, name: str, scaled: Mapping[str, Tensor], batch: Batch, form: Any = None
    ) -> Tensor:
        task = self._tasks[name]
        scale = cast(TargetScale, self._model.targets[name])
        pred_BK, target_BK = scaled[name].float(), batch[name]
        if name == "n_gamma":
            return nn.functional.cross_entropy(pred_BK, target_BK, reduction="none")
        form = form or task.loss_fn
        if form == "cosine":
            pred_BK = scale.physical(pred_BK)
            if name == "angle":
                return one_minus_cosine(direction_of(pred_BK), direction_of(target_BK))
            return one_minus_cosine(pred_BK, target_BK)
        target_BK = target_BK.reshape(len(target_BK), -1)
        if form != "gaussian_nll" and task.loss_fn == "gaussian_nll":
            pred_BK = pred_BK.chunk(2, dim=-1)[0]
        if self._settings.loss_space == "physical" and form != "gaussian_nll":
            pred_BK = scale.physical(pred_BK)
            return elementwise(form, pred_BK, target_BK, task.loss_beta).mean(-1)
        beta_K = task.loss_beta / scale.scale_K
        size_BK = target_BK / scale.scale_K
        return elementwise(form, pred_BK, scale.scaled(target_BK), beta_K, size_BK).mean(-1)

    def _compared(self) -> list[str]:
        """Tasks that have reference losses: quantities, not classes."""
        return [name for name in self._tasks if name != "n_gamma"]

    def _total(self, losses: Mapping[str, Tensor], batch: Batch) -> Tensor:
        weight_B = batch.get("weight")
        means = {
            name: (one if weight_B is None else one * weight_B).mean()
            for name, one in losses.items()
        }
        balance = self._model.balance
        if isinstance(balance, Balance):
            return balance(means)
        return torch.stack([self._tasks[name].weight * one for name, one in means.items()]).sum()

    def _columns(self, preds: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        columns = {"run_id": batch["run"], "event_id": batch["event"]}
        for name, pred_BK in preds.items():
            columns |= _columns_of(name, self._tasks[name], pred_BK.float(), batch.get(name))
        if "angle" in preds and "angle" in batch:
            pred_B3, true_B3 = (
                direction_of(preds["angle"][:, :2].float()),
                direction_of(batch["angle"]),
            )
            columns["opening_angle"] = angle_between(pred_B3, true_B3).rad2deg()
        if "xyzVTX" in batch:
            for axis, value_B in zip("xyz", batch["xyzVTX"].unbind(-1), strict=True):
                columns[f"{axis}_vtx"] = value_B
        return columns


def _columns_of(
    name: str, task: TaskSettings, pred_BK: Tensor, truth: Tensor | None
) -> dict[str, Tensor]:
    if name == "n_gamma":
        found = {"pred_n_gamma": pred_BK.argmax(-1)}
        return found if truth is None else found | {"true_n_gamma": truth}
    names = COMPONENTS[name]
    columns = {f"pred_{one}": pred_BK[:, index] for index, one in enumerate(names)}
    if task.loss_fn == "gaussian_nll":
        spread_BK = pred_BK[:, len(names) :]
        columns |= {f"{one}_log_var": spread_BK[:, index] for index, one in enumerate(names)}
    if truth is not None:
        truth_BK = truth.reshape(len(truth), -1)
        columns |= {f"true_{one}": truth_BK[:, index] for index, one in enumerate(names)}
    return columns
