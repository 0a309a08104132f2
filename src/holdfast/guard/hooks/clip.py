"""The script clips its gradients: they are measured before, because clipping may ruin them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from ...probes.host_norms import read_on_host
from ..engine_state import EngineState
from ..fail_open import EnginePart, fail_open
from ..norms_before_clip import Measured, NormsBeforeClip


class ClipHooks(EnginePart):
    """Hooks around ``clip_grad_norm_`` and its like.

    Args:
        state: of the engine.
    """

    def __init__(self, state: EngineState) -> None:
        super().__init__(state)
        self._on_device = state.settings.guard.device_path
        self._norm_meters = state.training.registry.norm_meters
        self._clip_order = state.training.registry.clip_order
        self._writer, self._window, self._scaling = state.writer, state.window, state.scaling
        self._fast = state.fast

    @fail_open("clip probe")
    def clip_begins(self, parameters: Iterable[Tensor] | Tensor) -> Measured | None:
        """Before clipping: measure, because a non-finite norm ruins every gradient.

        What was measured, where that is on the host.
        """
        clipped = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        clipped, window = self._clip_order.of(clipped), self._window
        window.drop_early(self._writer)
        early = self._fast.clip(clipped, window.losses, window.losses_decide, self._scaling.last())
        if early is None:
            early = NormsBeforeClip.taken(
                clipped,
                None if self._on_device else read_on_host,
                self._norm_meters,
                window.about().on_device,
                window.losses_decide,
            )
        window.early = early
        return early.measured if early.norms else None

    @fail_open("clip probe")
    def clip_ends(self) -> None:
        """Clipping is over: the measurement holds as long as nobody touches the gradients."""
        if self._window.early is not None:
            self._window.early.seal()
