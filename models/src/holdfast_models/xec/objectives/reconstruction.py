"""The loss, measures and predictions of the models that fill in hidden sensors.

Autoencoder and inpainter differ in what they hide and in what their networks are given.

Shapes: B events, S sensors, C channels, F faces.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..data.batches import inputs_of
from ..data.normalization import Inputs
from ..geometry.layout import FACES
from ..losses import HiddenLoss, HiddenLosses
from ..model.masking import Hidden, hide_flat, hide_random, valid_of, with_hidden
from ..settings import InpainterSettings, MaeSettings
from .health_numbers import SensorHealth, hidden_numbers

if TYPE_CHECKING:
    from ..run_settings import InpainterRun, MaeRun

Batch = Mapping[str, Tensor]
_VALIDATION_SEED = 1234  # validation losses are compared: the same sensors are hidden each time


class Pass(NamedTuple):
    """Events, what was hidden of them, and what the network made of the rest."""

    inputs: Inputs
    hidden: Hidden
    shown: Inputs
    pred_BSC: Tensor


class ReconstructionObjective:
    """Loss and measures of one run; calls the model it is given, which may be wrapped.

    Args:
        model: the bare model.
        settings: of the run.
    """

    def __init__(self, model: nn.Module, settings: MaeRun | InpainterRun) -> None:
        self._losses, self._settings = cast(HiddenLosses, model.losses), settings
        self._ratios: dict[str, float] = {}
        if isinstance(settings.model, InpainterSettings):
            self._ratios = settings.model.mask_ratio_by_face.given()
        self._health = SensorHealth(foreign=settings.init.allow_norm_mismatch)

    def loss(self, net: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor | float]]:
        """The loss on hidden sensors, and what is told beside it."""
        done = self.hide_and_fill(net, batch, fixed=False)
        found = self._loss_of(done)
        reported: dict[str, Tensor | float] = {
            f"loss_{channel}": mean_F.sum().detach() for channel, mean_F in found.faces.items()
        }
        reported["actual_mask_ratio"] = done.hidden.actual_ratio()
        reported |= hidden_numbers(done.hidden.hidden_BS, done.inputs.npho_valid_BS)
        return found.total, reported | self._health.numbers(done.inputs)

    def measure(self, net: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The training loss on held-out events, and their errors summed face by face."""
        done = self.hide_and_fill(net, batch)
        found = self._loss_of(done)
        rows_BS = {
            "n_masked": done.hidden.hidden_BS,
            "n_maskable": done.hidden.maskable_BS,
            "n_time_valid": done.inputs.time_valid_BS,
        }
        for channel, (d_BS, counted_BS) in found.errors.items():
            kept_BS = torch.where(counted_BS, d_BS, 0.0)
            rows_BS |= {
                f"count_{channel}": counted_BS,
                f"abs_{channel}": kept_BS.abs(),
                f"square_{channel}": kept_BS.square(),
            }
        numbers = {"loss": found.total}
        for channel, mean_F in found.faces.items():
            numbers[f"loss_{channel}"] = mean_F.sum()
            for face, mean in zip(FACES, mean_F.unbind(), strict=True):
                numbers[f"loss_{face}_{channel}"] = mean
        table_SF = self._losses.face_SF
        return numbers | {name: row_BS.float() @ table_SF for name, row_BS in rows_BS.items()}

    def predict(self, net: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """What was hidden and what was made of it, sensor by sensor, in the network's scale."""
        done = self.hide_and_fill(net, batch)
        columns = {
            "run": batch["run"],
            "event": batch["event"],
            "mask": done.hidden.hidden_BS.to(torch.uint8),
        }
        for index, channel in enumerate(("npho", "time")):
            columns[f"truth_{channel}"] = done.inputs.x_BSC[..., index]
            columns[f"masked_{channel}"] = done.shown.x_BSC[..., index]
        for index, channel in enumerate(self._losses.channels):
            columns[f"pred_{channel}"] = done.pred_BSC[..., index].float()
        return columns

    def hide_and_fill(self, net: nn.Module, batch: Batch, *, fixed: bool = True) -> Pass:
        """Ask the network about hidden sensors; ``fixed``: always about the same ones."""
        normalization = self._settings.normalization
        inputs = inputs_of(batch, normalization)
        generator, device = None, inputs.npho_BS.device
        if fixed:
            generator = torch.Generator(device).manual_seed(_VALIDATION_SEED)
        keys_BS = torch.rand(inputs.npho_BS.shape, generator=generator, device=device)
        hidden = self._hidden(inputs, keys_BS)
        shown = with_hidden(inputs, hidden.hidden_BS, normalization)
        return Pass(inputs, hidden, shown, self._asked(net, shown, hidden))

    def _loss_of(self, done: Pass) -> HiddenLoss:
        inputs = done.inputs
        return self._losses(
            done.pred_BSC, inputs.x_BSC, done.hidden.hidden_BS, inputs.time_valid_BS, inputs.npho_BS
        )

    def _hidden(self, inputs: Inputs, keys_BS: Tensor) -> Hidden:
        """Which sensors, of events and a random number for each sensor."""
        model, channels = self._settings.model, self._losses.channels
        if isinstance(model, MaeSettings):
            scale = self._settings.loss.time.mask_ratio_scale
            return hide_random(
                inputs, model.mask_ratio, keys_BS,
                channels=channels, scale=scale, threshold=self._losses.threshold,
            )  # fmt: skip
        choose = hide_flat if model.mask_npho_flat else hide_random
        ratios = self._ratios or model.mask_ratio
        return choose(inputs, ratios, keys_BS, channels=channels)

    def _asked(self, net: nn.Module, shown: Inputs, hidden: Hidden) -> Tensor:
        """The network's predictions, of events without their hidden sensors."""
        hidden_BS, maskable_BS = hidden
        if isinstance(self._settings.model, MaeSettings):
            return net(shown.x_BSC, hidden_BS | ~maskable_BS, valid_of(shown))
        return net(shown.x_BSC, hidden_BS, shown.npho_valid_BS | hidden_BS, valid_of(shown))
