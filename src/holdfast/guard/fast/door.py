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
from ..early_norms import EarlyNorms
from ..fail_open import EnginePart, FailsOpen, fail_open
from ..optimizer_guard import OptimizerGuard
from .device_fast_path import DeviceFastPath
from .fast_path import FastPath, Opened
from .parts import Parts
from .spared import Spared
from .stretch_hooks import PLACES, StretchHooks
from .stretches import Stretches

__all__ = ["FastSteps", "Parts"]


class FastSteps(EnginePart):
    """The fast paths of the host and of devices, and stretches of steps.

    Args:
        owner: of the switches and of the clock.
        parts: of the engine.
        on: whether there are fast steps at all.
    """

    def __init__(self, owner: FailsOpen, parts: Parts, *, on: bool) -> None:
        super().__init__(owner)
        self.on = on
        self._window, about = parts.window, parts[:3]
        self.host, self.device = FastPath(*about), DeviceFastPath(*about)
        self.stretches = Stretches(parts, self.phases)
        training = parts.writer.training
        self.spared = Spared(lambda told: training.record_at(training.iteration, told))
        """What faster forms of torch's functions save."""
        self.waits = False
        """Whether a stretch is at work: the records of its steps are made later."""
        self.plain: dict[str, Callable[..., Any]] = {}
        """The plain hooks that a stretch replaces, by name."""
        hooks = StretchHooks(owner, parts, self.stretches, self.plain, self.close, self._goes_on)
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
                self.stretches.begin(plan, self._window.previous)
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

    # ------------------------------------------------------------------ stretches

    @property
    def passes(self) -> int:
        """Backward passes since the last step, as far as they belong to a stretch."""
        stretch = self.stretches.now
        return 0 if stretch is None else len(stretch.copies)

    @property
    def in_step(self) -> bool:
        """Whether an optimizer is busy with a step of a stretch."""
        stretch = self.stretches.now
        return stretch is not None and stretch.armed is not None

    @fail_open("stretch")
    def close(self) -> None:
        """What comes next needs all that is known of the steps before it."""
        stretch = self.stretches.end() if self.stretches.now is not None else None
        if stretch is None:
            return
        self._stand()
        window = self._window
        if stretch.last:
            window.previous = Losses.of(stretch.last, read=window.read)
        if stretch.copies:
            window.losses = Losses.of(stretch.copies, read=window.read)
        if stretch.root is not None:
            self._sees(stretch.root)

    def leaves(self, optimizer: Optimizer) -> None:
        """An optimizer is about to be freed."""
        if self.stretches.goes_with(optimizer):
            self.close()

    def drop(self) -> None:
        """Something has failed: nothing is left of a stretch."""
        self.stretches.drop()
        self._stand()

    @fail_open("stretch")
    def _goes_on(self) -> None:
        turns = self.stretches.turns
        self.close()
        if turns and not self.off:
            self.stretches.begin_again(turns)
            self._stand()

    def _stand(self) -> None:
        """Put the hooks in place that the next step needs."""
        waits = self.stretches.now is not None
        if waits is not self.waits:
            self.waits = waits
            self._engine.update(self.short if waits else self.plain)
