"""Numbers beside the loss that the detectors XEC001 to XEC004 read.

Tensors all of them, computed where the batch is: nothing waits for the device. They are to be
taken from the events as measured, before sensors are dropped or hidden.

Shapes: B events, S sensors, C channels, O outputs of a task.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..data.normalization import Inputs
from ..settings import TaskSettings

_LARGEST = 9e9  # what files hold above it means "not available"
_ROUNDED = ("smooth_l1", "huber", "relative_smooth_l1")  # losses that beta has a meaning for


class SensorHealth:
    """Which sensors are dead, against the first batch; how bright and late the inputs are.

    Args:
        foreign: the encoder was trained with another normalisation, and somebody allowed it.
    """

    def __init__(self, *, foreign: bool = False) -> None:
        self._foreign = foreign
        self._first_S: Tensor | None = None

    def numbers(self, inputs: Inputs) -> dict[str, Tensor | float]:
        """Of one batch, by name."""
        npho_BS, time_BS = inputs.x_BSC.detach().unbind(-1)
        dead_S = (~inputs.npho_valid_BS).float().mean(0)
        if self._first_S is None:
            self._first_S = dead_S.clone()
        timed_BS = inputs.time_valid_BS
        late = torch.where(timed_BS, time_BS, 0.0).abs().sum() / timed_BS.sum().clamp(min=1)
        found: dict[str, Tensor | float] = {
            "dead_share": dead_S.mean(),
            # A sensor counts as changed where it is dead in half of the events more, or less.
            "dead_changed": ((dead_S - self._first_S).abs() > 0.5).float().mean(),
            "input_npho_top": torch.where(inputs.npho_valid_BS, npho_BS, 0.0).amax(1).mean(),
            "input_time_level": late,
        }
        return found | {"norm_mismatch": 1.0} if self._foreign else found


def target_numbers(
    targets: Mapping[str, Tensor], tasks: Mapping[str, TaskSettings]
) -> dict[str, Tensor]:
    """Of the true values of a batch, (B,) or (B, O) each in its own unit, by name.

    ``sentinel_targets``: values that stand for "not available"; ``beta_over_spread_TASK``: the
    loss's beta in units of the smallest spread of an output, 0 where all events are alike.
    """
    found: dict[str, Tensor] = {}
    missing: Tensor | None = None
    for name, task in tasks.items():
        target = targets[name]
        if not target.is_floating_point():
            continue
        target_BO = target.detach().float().reshape(len(target), -1)
        there_BO = target_BO.isfinite() & (target_BO.abs() <= _LARGEST)
        gone = (~there_BO).sum().float()
        missing = gone if missing is None else missing + gone
        if task.loss_fn in _ROUNDED:
            spread = _spread_O(target_BO, there_BO).amin()
            found[f"beta_over_spread_{name}"] = torch.where(
                spread > 0, task.loss_beta / spread.clamp(min=torch.finfo(spread.dtype).tiny), 0.0
            )
    return found if missing is None else found | {"sentinel_targets": missing}


def hidden_numbers(hidden_BS: Tensor, npho_valid_BS: Tensor) -> dict[str, Tensor]:
    """``sentinel_targets``: hidden sensors that have no measured value to be compared with."""
    return {"sentinel_targets": (hidden_BS & ~npho_valid_BS).sum().float()}


def _spread_O(target_BO: Tensor, there_BO: Tensor) -> Tensor:
    """Standard deviation of each output over the events that have it."""
    count_O = there_BO.sum(0).clamp(min=1)
    mean_O = torch.where(there_BO, target_BO, 0.0).sum(0) / count_O
    off_BO = torch.where(there_BO, target_BO - mean_O, 0.0)
    return (off_BO.square().sum(0) / count_O).sqrt()
