"""Loss-scale policy for fp16: low start, slow growth, a floor, a cut on explosions.

torch's own scaler begins at 65,536, doubles, and may halve for ever: a run whose gradients are
really infinite ends with a scale of zero. Here the scale begins at 1,024, grows by half every 200
clean steps, is halved by an overflow, divided by ten when gradients explode or the loss itself is
not finite, and never falls below 1. All of it goes through what a scaler offers to everybody; one
whose private scale was replaced raises on the second overflow in a row.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..config import ScalerSettings
from ..records.steps import ScalerChange


class ScalerPolicy:
    """The policy, for any ``torch.amp.GradScaler``.

    >>> scaler = torch.amp.GradScaler("cpu")
    >>> policy = ScalerPolicy(ScalerSettings())
    >>> policy.adopt(scaler)
    >>> scaler.get_scale(), scaler.get_growth_factor(), scaler.get_growth_interval()
    (1024.0, 1.5, 200)
    """

    def __init__(
        self,
        settings: ScalerSettings,
        on_first_update: Callable[[ScalerChange], None] | None = None,
    ) -> None:
        """``on_first_update`` is called once for each scaler, when it is first updated."""
        self._settings = settings
        self._on_first_update = on_first_update
        self._news: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
        self._own: weakref.WeakSet[Any] = weakref.WeakSet()
        self._used: weakref.ref[Any] | None = None
        self._exploded: Tensor | bool = False
        self._target: Tensor | None = None

    def adopt(self, scaler: Any) -> None:
        """``scaler`` is about to scale a loss; the first time, it gets our numbers."""
        if self._used is None or self._used() is not scaler:
            self._used = weakref.ref(scaler)
        if scaler in self._own or not scaler.is_enabled():
            return
        self._own.add(scaler)
        state = scaler.state_dict()
        ours = _numbers(self._settings)
        # One that has counted clean steps, or has our numbers, goes on from a checkpoint.
        started = state["_growth_tracker"] > 0 or state.items() >= ours.items()
        scale = max(state["scale"] if started else self._settings.init, self._settings.floor)
        scaler.load_state_dict(state | ours | {"scale": scale})
        self._news[scaler] = scale

    def explosion(self, outlier: Tensor | None = None, loss: Tensor | None = None) -> None:
        """The gradients of the step before the next update have exploded, or are not finite.

        Args:
            outlier: where that is decided on a device: the ``outlier`` bits of the step, odd for
                an explosion. Nothing is read back, so that ranks which decide alike keep the same
                scale; the count of clean steps goes on.
            loss: the loss on a device: one that is not finite counts as an explosion.
        """
        scaler = None if self._used is None else self._used()
        scale = None if scaler is None else scaler._get_scale_async()
        if scale is None:
            return
        # The update may halve the scale for the same step: the cut is one of the scale before it.
        self._target = scale * self._settings.explosion
        signs: list[Tensor] = []
        if outlier is not None:
            signs.append(outlier.detach().reshape(()) % 2 == 1)
        if loss is not None:
            loss = loss.detach().reshape(())
            signs.append(loss - loss != 0)
        self._exploded = True if not signs else signs[0] if len(signs) == 1 else signs[0] | signs[1]

    def lowered(self, scale: float) -> float:
        """The scale after an explosion."""
        return max(scale * self._settings.explosion, self._settings.floor)

    def updated(self, scaler: Any) -> None:
        """``scaler.update()`` has run: lower the scale after an explosion, hold the floor."""
        if scaler not in self._own:
            return
        scale = self._news.pop(scaler, None)
        if scale is not None and self._on_first_update is not None:
            self._on_first_update(ScalerChange(what="policy", scale=scale))
        exploded = False
        if self._used is not None and self._used() is scaler:
            exploded, self._exploded = self._exploded, False
        if exploded is True:
            # The host knows: an incident, in which it may ask, and clean steps are counted anew.
            state = scaler.state_dict()
            assert self._target is not None
            scale = max(float(self._target), self._settings.floor)
            lower = {"scale": scale, "_growth_tracker": 0}
            scaler.load_state_dict(state | lower)
            exploded = False
        self._hold_floor(scaler, exploded)

    def _hold_floor(self, scaler: Any, exploded: Tensor | bool) -> None:
        scale, floor = scaler._get_scale_async(), float(self._settings.floor)
        if isinstance(exploded, Tensor):
            assert self._target is not None
            exploded = exploded.to(scale.device, non_blocking=True)
            scale = torch.where(exploded, self._target, scale)
        elif scale.is_cpu:
            if scale.item() < floor:
                scaler.update(floor)
            return
        # On a device the host does not know whether the scale is too low: it is set every time.
        scaler.update(scale.clamp(min=floor))


class _CalmGradScaler(torch.amp.GradScaler):
    """A scaler that carries the policy itself."""

    def __init__(self, device: str, settings: ScalerSettings, enabled: bool) -> None:
        super().__init__(device, init_scale=settings.init, enabled=enabled)
        self._take_policy(settings)

    def _take_policy(self, settings: ScalerSettings) -> None:
        self.settings = settings
        self.policy = ScalerPolicy(settings)
        self.policy.adopt(self)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["policy"]  # knows this object, not its copy
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._take_policy(self.settings)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on with a saved scale; its growth and backoff are those of the settings."""
        super().load_state_dict(state_dict and state_dict | _numbers(self.settings))

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Update the scale, then hold the floor; a scale set by hand is kept."""
        super().update(new_scale)
        if new_scale is None:
            self.policy.updated(self)


def _numbers(settings: ScalerSettings) -> dict[str, Any]:
    """The settings, as the state of a scaler calls them."""
    return {
        "growth_factor": settings.growth,
        "backoff_factor": settings.backoff,
        "growth_interval": settings.interval,
    }


def policy_of(scaler: Any) -> ScalerPolicy | None:
    """The policy that a scaler carries itself; it also applies it."""
    return scaler.policy if isinstance(scaler, _CalmGradScaler) else None


def apply_scaler_policy(
    device: str = "cuda", settings: ScalerSettings | None = None, *, enabled: bool = True
) -> torch.amp.GradScaler:
    """Make a ``GradScaler`` that follows this policy by itself, whoever updates it.

    Under ``holdfast run``, ``holdfast.watch`` and in the trainer the guard tells it of explosions.

    >>> apply_scaler_policy("cpu").get_scale()
    1024.0
    """
    return _CalmGradScaler(device, settings or ScalerSettings(), enabled)
