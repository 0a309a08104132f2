"""The loss, measures and predictions of the models that fill in hidden sensors.

Autoencoder and inpainter differ in what they hide and in what their networks are given.

Shapes: B events, S sensors, C channels, F faces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from ..data.batches import inputs_of
from ..data.normalization import Inputs
from ..evaluation.hidden_metrics import hidden_metrics, hidden_rows
from ..losses import HiddenLoss, HiddenLosses
from ..model.masking import Hidden, with_hidden
from .health_numbers import SensorHealth, hidden_numbers

if TYPE_CHECKING:
    from ..run_settings import InpainterRun, MaeRun

Batch = Mapping[str, Tensor]
Hide = Callable[[Inputs, Tensor], Hidden]
"""Which sensors, of events and a random number for each sensor."""
_VALIDATION_SEED = 1234  # validation losses are compared: the same sensors are hidden each time


class Pass(NamedTuple):
    """Events, what was hidden of them, and what the network made of the rest."""

    inputs: Inputs
    hidden: Hidden
    x_BSC: Tensor
    pred_BSC: Tensor


class ReconstructionObjective:
    """Loss and measures of one run; calls the model it is given, which may be wrapped.

    Args:
        losses: on hidden sensors; part of the model where it learns weights.
        settings: of the run.
        hide: which sensors.
    """

    def __init__(self, losses: HiddenLosses, settings: MaeRun | InpainterRun, hide: Hide) -> None:
        self._losses, self._settings, self._hide = losses, settings, hide
        self._health = SensorHealth(foreign=settings.init.allow_norm_mismatch)

    def loss(self, net: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        """The loss on hidden sensors, and what is told beside it."""
        done = self._pass(net, batch, fixed=False)
        found = self._loss_of(done)
        told: dict[str, Tensor | float] = {
            f"loss_{channel}": mean_F.sum().detach() for channel, mean_F in found.faces.items()
        }
        hidden_BS, maskable_BS = done.hidden
        told["actual_mask_ratio"] = hidden_BS.sum() / maskable_BS.sum().clamp(min=1)
        told |= hidden_numbers(hidden_BS, done.inputs.npho_valid_BS)
        return found.total, told | self._health.numbers(done.inputs)

    def measure(self, net: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The training loss on held-out events, and their errors summed face by face."""
        done = self._pass(net, batch, fixed=True)
        found = self._loss_of(done)
        rows = hidden_rows(
            found.error_BSC,
            found.loss_BSC,
            done.hidden.hidden_BS,
            done.hidden.maskable_BS,
            done.inputs.time_valid_BS,
            self._losses.face_SF,
            channels=self._losses.channels,
        )
        rows["loss_row"] = rows.pop("loss")
        return {"loss": found.total, **rows}

    def summarize(self, rows: Mapping[str, Tensor]) -> dict[str, float]:
        """The numbers of a whole validation."""
        return hidden_metrics(
            {**rows, "loss": rows["loss_row"]},
            channels=self._losses.channels,
            weights={
                "npho": self._settings.loss.npho_weight,
                "time": self._settings.loss.time.weight,
            },
        )

    def predict(self, net: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Truth, mask and predictions of every sensor, in the network's scale."""
        done = self._pass(net, batch, fixed=True)
        columns = {
            "run": batch["run"],
            "event": batch["event"],
            "mask": done.hidden.hidden_BS.to(torch.uint8),
        }
        for index, channel in enumerate(("npho", "time")):
            columns[f"truth_{channel}"] = done.inputs.x_BSC[..., index]
            columns[f"masked_{channel}"] = done.x_BSC[..., index]
        for index, channel in enumerate(self._losses.channels):
            columns[f"pred_{channel}"] = done.pred_BSC[..., index].float()
        return columns

    def _pass(self, net: nn.Module, batch: Batch, *, fixed: bool) -> Pass:
        inputs = inputs_of(batch, self._settings.normalization)
        generator, device = None, inputs.npho_BS.device
        if fixed:
            generator = torch.Generator(device).manual_seed(_VALIDATION_SEED)
        keys_BS = torch.rand(inputs.npho_BS.shape, generator=generator, device=device)
        hidden = self._hide(inputs, keys_BS)
        x_BSC = with_hidden(inputs, hidden.hidden_BS, self._settings.normalization)
        pred_BSC = net(x_BSC, hidden.hidden_BS, inputs.valid_BSC)
        return Pass(inputs, hidden, x_BSC, pred_BSC)

    def _loss_of(self, done: Pass) -> HiddenLoss:
        inputs = done.inputs
        return self._losses(
            done.pred_BSC,
            inputs.x_BSC,
            done.hidden.hidden_BS,
            inputs.time_valid_BS,
            inputs.npho_BS,
        )
