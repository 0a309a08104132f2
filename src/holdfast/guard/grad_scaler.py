"""Observe the user's GradScaler: which loss it scaled, and whether it stepped."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..actions.scaler_policy import ScalerPolicy, policy_of
from ..probes.step_record import StepRecord


def _nothing() -> None:
    return None


_NOTHING: Any = _nothing


class Scaling:
    """What is known of a scaler between ``scale`` and the end of its ``step``."""

    def __init__(self) -> None:
        self.scaler: Any = None
        """The one whose ``step`` is at work."""
        self.last: Callable[[], Any] = _NOTHING
        """The scaler that has scaled a loss last."""
        self.stepped = False
        """Whether the optimizer has stepped since ``scaler.step`` began."""
        self.made: tuple[weakref.ref[Tensor], Tensor] | None = None
        """What the scaler has made last, and of which loss."""
        self.variable: weakref.ref[Tensor] = _NOTHING
        """The loss that was scaled last, where it has memory of its own."""

    def used(self, scaler: Any) -> None:
        """A scaler is about to scale a loss."""
        if self.last() is not scaler:
            try:
                self.last = weakref.ref(scaler)
            except TypeError:  # one of the script's own that cannot be referred to
                self.last = _NOTHING

    def scaled(self, loss: Any, result: Any) -> None:
        """``result`` was made of ``loss``."""
        if isinstance(loss, Tensor) and isinstance(result, Tensor):
            self.made = (weakref.ref(result), loss.detach())
            # ``own``, written out: this is done in every step.
            own_part = loss.grad_fn is not None and loss.numel() == 1
            own_part = own_part and loss.layout is torch.strided and not loss._is_view()
            self.variable = weakref.ref(loss) if own_part else _NOTHING

    def unscaled(self, tensors: object) -> object:
        """The loss itself, where backward is called on what the scaler made of it."""
        if self.made is None:
            return tensors
        result, loss = self.made
        self.made = None
        return loss if result() is tensors else tensors

    def use(self) -> Tensor | None:
        """The optimizer steps, so the scaler did not skip; its scale, wherever it lives."""
        self.stepped = True
        return self.scaler._get_scale_async()


class ScalerInUse:
    """The policy of the scaler that scales the losses now.

    Args:
        asked: for scalers that carry none, where one was asked for.
        acts: whether the guard may change anything; a scaler's own policy is left alone if not.
    """

    def __init__(self, asked: ScalerPolicy | None, *, acts: bool) -> None:
        self.policy = asked
        """None: nobody is told of explosions."""
        self._asked, self._acts = asked, acts

    def used(self, scaler: Any) -> None:
        """A scaler is about to scale a loss."""
        own = policy_of(scaler)
        self.policy = own if own is not None and self._acts else self._asked
        if own is None and self.policy is not None:
            self.policy.adopt(scaler)

    def updated(self, scaler: Any) -> None:
        """``scaler.update()`` has run; one that carries a policy applies it by itself."""
        if self.policy is not None and policy_of(scaler) is None:
            self.policy.updated(scaler)


def found_by(
    scaler: Any, optimizer: Optimizer, device: torch.device
) -> tuple[Tensor, Tensor] | None:
    """Scale, and what ``unscale_`` has found in the gradients of an optimizer; mostly there."""
    if scaler is None or (scale := scaler._get_scale_async()) is None:
        return None
    found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].get(device)
    return None if found is None else (scale, found)


def note_skip(record: StepRecord, scaler: Any) -> None:
    """Fill the row of a step that a scaler has skipped."""
    record.row.update(scaler_skipped=1.0, grad_norm=math.nan)
    scale = scaler._get_scale_async()
    if scale is not None and not scale.is_cuda:
        record.row["scale"] = scale.item()


def why_lower(record: StepRecord) -> str:
    """Why the scale must fall further than an overflow lets it; empty for ordinary steps.

    An overflow is found by the scaler while the loss is finite. A loss that is not finite makes
    the norm so at any scale.
    """
    if math.isnan(record.row["scale"]) or record.skip_ordered:
        return ""
    if record.loss_bad:
        return "nonfinite"
    return "explosion" if record.row.get("outlier", 0.0) % 2 == 1 else ""
