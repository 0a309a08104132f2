"""Both fast paths, by where a step is decided; the engine asks them before the full path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ...diagnosis.nonfinite.investigation import Investigation
from ...probes.loss import Losses
from ...probes.step_record import StepRecord
from ...recovery.rollback import Recovery
from ..early_norms import EarlyNorms
from ..optimizer_guard import OptimizerGuard
from ..step_writer import StepWriter
from .device_fast_path import DeviceFastPath
from .fast_path import FastPath, Opened


class FastPaths:
    """The fast path of the host and that of devices."""

    def __init__(
        self, writer: StepWriter, investigation: Investigation, recovery: Recovery
    ) -> None:
        self.host = FastPath(writer, investigation, recovery)
        self.device = DeviceFastPath(writer, investigation, recovery)

    def open(
        self,
        optimizer: Optimizer,
        losses: Losses,
        decides: Callable[[], bool],
        scale: Tensor | None,
        early: EarlyNorms | None,
    ) -> Opened | None:
        """Decide about the next step; None when it must take the full path.

        Args:
            optimizer: about to step.
            losses: that the step is about.
            decides: says whether a bad loss alone makes the step bad.
            scale: of a GradScaler.
            early: norms from before the script clipped its gradients.
        """
        if self.host.plans.known:
            opened = self.host.open(optimizer, losses, scale, early)
            if opened is not None:
                return opened
        if not self.device.plans.known:
            return None
        return self.device.open(optimizer, losses, decides, scale, early)

    def clip(
        self,
        parameters: Sequence[Tensor],
        losses: Losses,
        decides: Callable[[], bool],
        scaler: Any,
    ) -> EarlyNorms | None:
        """The script is about to clip these: measure them as in the last step, or None."""
        early = self.host.clip(parameters) if self.host.plans.known else None
        if early is not None or not self.device.plans.known:
            return early
        return self.device.clip(parameters, losses, decides, scaler)

    def learn(
        self, optimizer: Optimizer, guard: OptimizerGuard, record: StepRecord, *, on_device: bool
    ) -> None:
        """After a step on the full path: decide whether the next ones may take a fast one."""
        (self.device if on_device else self.host).learn(optimizer, guard, record)

    def forget(self, optimizer: Optimizer | None = None) -> None:
        """Something changed, for one optimizer or for all: the next step takes the full path."""
        self.host.plans.forget(optimizer)
        self.device.plans.forget(optimizer)
