"""The regressor: energy, time, position and direction of the photon from all sensors.

B events, S sensors, C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from holdfast import HoldfastError

from ..settings import NormalizationSettings, RegressorSettings, TasksSettings
from .encoder import Encoder
from .light import light_of
from .targets import OUTPUTS, TargetScale

__all__ = ["Regressor", "TaskHead"]


class Regressor(nn.Module):
    """Encoder and one head per task that is enabled; there are no others.

    Args:
        settings: of encoder and heads.
        tasks: which quantities.
        normalization: of the inputs, for a task that is measured against the light.
    """

    def __init__(
        self,
        settings: RegressorSettings,
        tasks: TasksSettings,
        normalization: NormalizationSettings | None = None,
    ) -> None:
        super().__init__()
        active = tasks.active()
        if not active:
            raise HoldfastError(
                f"no task is enabled; set tasks.NAME.enabled for one of {', '.join(OUTPUTS)}"
            )
        self.settings, self.tasks = settings, tasks
        self.normalization = normalization or NormalizationSettings()
        self.balance: nn.Module | None = None
        self.against_light = tuple(name for name, task in active.items() if task.against_light)
        self.encoder = Encoder(settings)
        inputs = len(self.encoder.tokens) * settings.encoder_dim
        self.heads = nn.ModuleDict()
        self.targets = nn.ModuleDict()
        for name, task in active.items():
            outputs = OUTPUTS[name] * (2 if task.loss_fn == "gaussian_nll" else 1)
            self.heads[name] = TaskHead(inputs, settings.hidden_dim, outputs, settings.head_dropout)
            self.targets[name] = TargetScale(name, task)

    def forward(
        self,
        x_BSC: Tensor,
        hidden_BS: Tensor | None = None,
        valid_BSC: Tensor | None = None,
        *,
        scaled: bool = False,
    ) -> dict[str, Tensor]:
        """By task, in its unit: (B, outputs), and log variances after them with gaussian_nll.

        ``scaled``: as ``forward_scaled``, for a loss that calls a wrapped model.
        """
        found = self.forward_scaled(x_BSC, hidden_BS, valid_BSC)
        return found if scaled else self.physical(found)

    def forward_scaled(
        self, x_BSC: Tensor, hidden_BS: Tensor | None = None, valid_BSC: Tensor | None = None
    ) -> dict[str, Tensor]:
        """By task, on the network's scale, as the loss takes it."""
        tokens_BTD = self.encoder(x_BSC, hidden_BS, valid_BSC)
        found = {name: head(tokens_BTD) for name, head in self.heads.items()}
        for name in self.against_light:
            target = self.targets[name]
            assert isinstance(target, TargetScale)
            light_B1 = light_of(x_BSC, valid_BSC, self.normalization)
            found[name] = target.from_light(found[name].float(), light_B1)
        return found

    def physical(self, scaled: dict[str, Tensor]) -> dict[str, Tensor]:
        """Predictions of ``forward_scaled`` in their units."""
        found: dict[str, Tensor] = {}
        for name, pred in scaled.items():
            target = self.targets[name]
            assert isinstance(target, TargetScale)
            found[name] = target.physical(pred.float())
        if "angleVec" in found:
            vector, log_var = found["angleVec"].tensor_split((3,), dim=-1)
            found["angleVec"] = torch.cat((nn.functional.normalize(vector, dim=-1), log_var), -1)
        return found


class TaskHead(nn.Module):
    """A small network on the tokens laid end to end.

    Args:
        inputs: tokens times their width.
        hidden: width of the two hidden layers.
        outputs: of the task.
        dropout: between the two hidden layers.
    """

    def __init__(self, inputs: int, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.GELU(),
            nn.Linear(hidden, outputs),
        )

    def forward(self, tokens_BTD: Tensor) -> Tensor:
        """The outputs, on the network's scale."""
        flat_BI = tokens_BTD.flatten(1)
        # A forecast has no device that numbers could be rounded on.
        if flat_BI.is_meta or not torch.is_autocast_enabled(flat_BI.device.type):
            return self.layers(flat_BI)
        # In full precision from here on, for 1 % of the arithmetic: there is no sum behind it any
        # more that rounding errors could cancel in.
        with torch.autocast(flat_BI.device.type, enabled=False):
            return self.layers(flat_BI.float())
