"""One launch on a device that measures gradients, judges them and decides about the step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...probes.gradients import DeviceReading, NormMeter
from ...probes.loss import Losses
from ...probes.model_state import largest_on_device
from ..outliers import Outliers
from ..step_buffers import StepBuffers


class DeviceLaunch:
    """Launches for the steps of one optimizer on the fast path.

    Args:
        norm_meter: of the device that they are on.
        buffers: are measured along.
        outliers: what the norms are judged by.
    """

    def __init__(self, norm_meter: NormMeter, buffers: StepBuffers, outliers: Outliers) -> None:
        self._norm_meter, self._buffers, self._outliers = norm_meter, buffers, outliers

    def measure(
        self,
        grads: list[Tensor],
        losses: Losses,
        device: torch.device,
        scaler: tuple[Tensor, Tensor | None] | None,
        *,
        still_scaled: bool,
        clipped: bool,
        decides: bool,
    ) -> tuple[DeviceReading, Sequence[int]]:
        """One launch that measures, judges and decides; the second are buffers measured along.

        Args:
            grads: dense gradients, all on ``device``.
            losses: of the step.
            device: where they are.
            scaler: scale of a GradScaler and what it has found.
            still_scaled: whether the gradients carry that scale.
            clipped: whether the script is about to clip them.
            decides: whether a bad loss alone makes the step bad.
        """
        norm_meter = self._norm_meter
        which: Sequence[int] = ()
        buffers: list[Tensor] = []
        extras: list[Tensor] = []
        if self._buffers.known:
            self._buffers.look()
            which, buffers = self._buffers.to_measure(device)
            if buffers and not norm_meter.can_take(buffers, grads[0].dtype):
                extras, buffers = [largest_on_device(buffers)], []
        asked = self._outliers.question(
            device,
            alone=True,
            clipped=clipped,
            may_skip=True,
            scale=scaler[0] if scaler is not None and still_scaled else None,
        )
        values = losses.values
        one = len(values) == 1 and not losses.numbers and losses.latest is None
        if one and values[0].device == device:
            loss: Tensor | None = values[0]
        else:
            loss = losses.on_device(device)
        if not which and loss is not None and asked is not None:
            again = norm_meter.again(grads, loss, loss_decides=decides, asked=asked, scaler=scaler)
            if again is not None:
                return again, which
        measured = norm_meter.measure(
            grads,
            loss,
            loss_decides=decides,
            extras=extras,
            buffers=buffers,
            asked=asked,
            scaler=scaler,
        )
        return measured, which
