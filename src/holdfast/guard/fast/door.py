"""The only door to what makes a step cheaper; without it every step takes the plain path.

The plain path asks it for a decision about the next step (``open``), tells it of a step that is
concluded (``learn``) and of whatever changes (``forget``, ``close``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ...probes.loss import Losses
from ...probes.step_record import StepRecord
from ..fail_open import EnginePart, FailsOpen, fail_open
from ..norms_before_clip import NormsBeforeClip
from ..optimizer_guard import OptimizerGuard
from .burst_hooks import PLACES, BurstHooks
from .bursts import StepBursts
from .device_fast_path import DeviceFastPath
from .fast_path import FastPath, Opened
from .parts import EngineParts
from .torch_time_saved import TorchTimeSaved

__all__ = ["EngineParts", "FastSteps"]


class FastSteps(EnginePart):
    """The fast paths of the host and of devices, and bursts of steps.

    Args:
        owner: of the switches and of the clock.
        parts: of the engine.
        on: whether there are fast steps at all.
    """

    def __init__(self, owner: FailsOpen, parts: EngineParts, *, on: bool) -> None:
        super().__init__(owner)
        self.on = on
        self._window, about = parts.window, parts[:3]
        self.host, self.device = FastPath(*about), DeviceFastPath(*about)
        self.bursts = StepBursts(parts, self.phases)
        training = parts.writer.training
        self.torch_time_saved = TorchTimeSaved(
            lambda reported: training.record_at(training.iteration, reported)
        )
        """What faster forms of torch's functions save."""
        self.waits = False
        """Whether a burst is at work: the records of its steps are made later."""
        self.plain: dict[str, Callable[..., Any]] = {}
        """The plain hooks that a burst replaces, by name."""
        hooks = BurstHooks(owner, parts, self.bursts, self.plain, self.close, self._goes_on)
        self.short: dict[str, Callable[..., Any]] = {name: getattr(hooks, name) for name in PLACES}
        """Those that stand in their places."""
        self._engine: dict[str, Any] = {}
        self._sees: Callable[[object], object] = lambda root: None

    def connect(self, engine: dict[str, Any], sees: Callable[[object], object]) -> None:
        """The engine is complete.

        Args:
            engine: its attributes, with the hooks of a step.
            sees: is told of a loss on which backward has begun.
        """
        self._engine, self._sees = engine, sees
        self.plain.update((name, engine[name]) for name in PLACES)

    def open(
        self,
        optimizer: Optimizer,
        losses: Losses,
        decides: Callable[[], bool],
        scale: Tensor | None,
        early: NormsBeforeClip | None,
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
    ) -> NormsBeforeClip | None:
        """The script is about to clip these: measure them as in the last step, or None."""
        early = self.host.clip(parameters) if self.host.plans.known else None
        if early is not None or not self.device.plans.known:
            return early
        return self.device.clip(parameters, losses, decides, scaler)

    def learn(
        self,
        optimizer: Optimizer,
        guard: OptimizerGuard,
        record: StepRecord,
        *,
        planned: bool,
        on_device: bool,
    ) -> None:
        """After a step that is concluded: decide how the next ones may go.

        Args:
            optimizer: that has stepped.
            guard: of it.
            record: of the step.
            planned: whether it took the fast path of a device.
            on_device: whether it was decided on a device.
        """
        if planned:
            plan = self.device.plans.of(optimizer)
            if plan is not None and not self.off:
                self.bursts.begin(plan, self._window.previous)
                self._stand()
        elif self.on:
            (self.device if on_device else self.host).learn(optimizer, guard, record)

    def knows(self, optimizers: int) -> bool:
        """Whether as many optimizers as there are have their steps decided on a device."""
        return len(self.device.plans.known) == optimizers

    def forget(self, optimizer: Optimizer | None = None) -> None:
        """Something changed, for one optimizer or for all: the next step takes the full path."""
        self.host.plans.forget(optimizer)
        self.device.plans.forget(optimizer)

    # ------------------------------------------------------------------ bursts

    @property
    def passes(self) -> int:
        """Backward passes since the last step, as far as they belong to a burst."""
        burst = self.bursts.now
        return 0 if burst is None else len(burst.copies)

    @property
    def in_step(self) -> bool:
        """Whether an optimizer is busy with a step of a burst."""
        burst = self.bursts.now
        return burst is not None and burst.pending is not None

    @fail_open("burst")
    def close(self) -> None:
        """What comes next needs all that is known of the steps before it."""
        burst = self.bursts.end() if self.bursts.now is not None else None
        if burst is None:
            return
        self._stand()
        window = self._window
        if burst.last:
            window.previous = Losses.of(burst.last, read=window.read)
        if burst.copies:
            window.losses = Losses.of(burst.copies, read=window.read)
        if burst.root is not None:
            self._sees(burst.root)

    def leaves(self, optimizer: Optimizer) -> None:
        """An optimizer is about to be freed."""
        if self.bursts.goes_with(optimizer):
            self.close()

    def drop(self) -> None:
        """Something has failed: nothing is left of a burst."""
        self.bursts.drop()
        self._stand()

    @fail_open("burst")
    def _goes_on(self) -> None:
        burst_parts = self.bursts.burst_parts
        self.close()
        if burst_parts and not self.off:
            self.bursts.begin_again(burst_parts)
            self._stand()

    def _stand(self) -> None:
        """Put the hooks in place that the next step needs."""
        waits = self.bursts.now is not None
        if waits is not self.waits:
            self.waits = waits
            self._engine.update(self.short if waits else self.plain)
