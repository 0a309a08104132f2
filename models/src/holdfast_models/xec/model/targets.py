"""The quantities that are reconstructed, in their own unit and on the network's scale.

B events, K outputs of a task.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast import HoldfastError

from ..settings import TaskSettings

__all__ = ["OUTPUTS", "TargetScale"]

OUTPUTS = {"angle": 2, "energy": 1, "timing": 1, "uvwFI": 3, "angleVec": 3, "n_gamma": 5}
"""How many numbers each task has."""

_DEFAULTS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "angle": ((90.0, 0.0), (15.0, 30.0)),  # offset and scale, in deg
    "energy": ((0.0375,), (0.0225,)),  # GeV
    "timing": ((0.0,), (1e-9,)),  # s
    "uvwFI": ((0.0, 0.0, 5.0), (12.0, 35.0, 5.0)),  # cm
}
_GEV_PER_PHOTON = 1 / 11.2e6  # of generated events; what is off elsewhere a head learns as its bias


class TargetScale(nn.Module):
    """Between a quantity and what the network predicts, (target - offset) / scale.

    With ``log`` the network predicts the logarithm of the target over ``offset``, or over
    ``scale`` where the offset is 0, such that one unit of it is still about ``scale``.
    """

    offset_K: Tensor
    scale_K: Tensor

    def __init__(self, task: str, settings: TaskSettings) -> None:
        super().__init__()
        count = OUTPUTS[task]
        offset, scale = _DEFAULTS.get(task, ((0.0,), (1.0,)))
        offset = _numbers(task, "offset", settings.offset or offset, count)
        scale = _numbers(task, "scale", settings.scale or scale, count)
        if min(scale) <= 0:
            raise HoldfastError(f"tasks.{task}.scale is {list(scale)}; give positive numbers")
        self.log = settings.log_transform
        if self.log and min(offset) < 0:
            raise HoldfastError(
                f"tasks.{task}.offset is {list(offset)}; with log_transform give none below 0"
            )
        self.register_buffer("offset_K", torch.tensor(offset), persistent=False)
        self.register_buffer("scale_K", torch.tensor(scale), persistent=False)

    def scaled(self, target_BK: Tensor) -> Tensor:
        """On the network's scale."""
        if not self.log:
            return (target_BK - self.offset_K) / self.scale_K
        centre_K, width_K = self._logarithmic()
        return (target_BK.clamp_min(1e-30) / centre_K).log() / width_K

    def physical(self, pred: Tensor) -> Tensor:
        """In the quantity's unit; K outputs, or 2K: means, then logarithms of variances."""
        count = self.offset_K.shape[0]
        mean_BK, log_var_BK = pred[..., :count], pred[..., count:]
        if self.log:
            centre_K, width_K = self._logarithmic()
            mean_BK = centre_K * (mean_BK * width_K).exp()
            unit = width_K * mean_BK  # of the logarithm, at the predicted value
        else:
            mean_BK = mean_BK * self.scale_K + self.offset_K
            unit = self.scale_K
        if pred.shape[-1] == count:
            return mean_BK
        return torch.cat((mean_BK, log_var_BK + 2 * unit.log()), dim=-1)

    def from_light(self, pred: Tensor, light_B1: Tensor) -> Tensor:
        """Predictions of the target over the energy that its light stands for, as of the target."""
        centre_K, width_K = self._logarithmic()
        known_B1 = (light_B1 * (_GEV_PER_PHOTON / centre_K)).log() / width_K
        return torch.cat((pred[..., :1] + known_B1, pred[..., 1:]), dim=-1)

    def _logarithmic(self) -> tuple[Tensor, Tensor]:
        centre_K = torch.where(self.offset_K > 0, self.offset_K, self.scale_K)
        return centre_K, self.scale_K / centre_K


def _numbers(task: str, what: str, given: tuple[float, ...], count: int) -> list[float]:
    if len(given) not in (1, count):
        raise HoldfastError(
            f"tasks.{task}.{what} has {len(given)} numbers; give {count}, or one for all"
        )
    return [float(one) for one in given] * (count // len(given))
