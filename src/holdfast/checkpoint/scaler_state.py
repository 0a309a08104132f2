"""State of a ``GradScaler`` with its numbers where they are.

``GradScaler.state_dict`` reads scale and tracker from the device, and whoever does so waits for all
that the device still has to do. A snapshot is taken amid training: it copies them there, like
weights, and they become numbers when they are put back or shown.
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor
from torch.amp.grad_scaler import GradScaler


def state(scaler: Any) -> dict[str, Any]:
    """As ``state_dict`` gives it, but for what is on a device."""
    known = isinstance(scaler, GradScaler) and type(scaler).state_dict is GradScaler.state_dict
    if not known or not scaler.is_enabled() or scaler._scale is None:
        return scaler.state_dict()
    assert scaler._growth_tracker is not None, "both are made together"
    return {
        "scale": scaler._scale,
        "growth_factor": scaler.get_growth_factor(),
        "backoff_factor": scaler.get_backoff_factor(),
        "growth_interval": scaler.get_growth_interval(),
        "_growth_tracker": scaler._growth_tracker,
    }


def numbers(saved: Any) -> Any:
    """A saved state as ``load_state_dict`` wants it."""
    if not isinstance(saved, dict):
        return saved
    parts = cast("dict[str, Any]", saved).items()
    return {name: one.item() if isinstance(one, Tensor) else one for name, one in parts}
