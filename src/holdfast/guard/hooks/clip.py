"""The script clips its gradients: they are measured before, because clipping may ruin them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter

from torch import Tensor

from ...probes._host_norms import read_on_host
from ..early_norms import EarlyNorms
from ..engine_state import EngineState
from ..fail_open import EnginePart, fail_open
from ..fast.direct_calls import Measured


class ClipHooks(EnginePart):
    """Hooks around ``clip_grad_norm_`` and its like.

    Args:
        state: of the engine.
        leave_stretch: ends a stretch of steps.
    """

    def __init__(self, state: EngineState, leave_stretch: Callable[[], None]) -> None:
        super().__init__(state)
        self._on_device = state.settings.guard.device_path
        self._meters = state.training.registry.meters
        self._clip_order = state.training.registry.clip_order
        self._writer, self._window, self._scaling = state.writer, state.window, state.scaling
        self._stretches, self._fast_paths = state.stretches, state.fast_paths
        self._leave_stretch = leave_stretch

    def clip_begins(self, parameters: Iterable[Tensor] | Tensor) -> Measured | None:
        """Before clipping: measure, because a non-finite norm ruins every gradient.

        What was measured, where that is on the host.
        """
        stretch = self._stretches.now
        if stretch is not None and type(parameters) is list:
            # Without the wrapper, which takes as long as what it calls.
            began = perf_counter()
            try:
                if stretch.clip_begins(self._clip_order.of(parameters)):
                    spent = perf_counter() - began
                    self.phases.guard += spent
                    self.phases.last += spent
                    return None
            except Exception as error:
                self.failed("stretch", error)
        if stretch is not None:
            self._leave_stretch()
        return self._measure(parameters)

    @fail_open("clip probe")
    def _measure(self, parameters: Iterable[Tensor] | Tensor) -> Measured | None:
        clipped = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        clipped, window = self._clip_order.of(clipped), self._window
        window.drop_early(self._writer)
        early = self._fast_paths.clip(
            clipped, window.losses, window.losses_decide, self._scaling.last()
        )
        if early is None:
            early = EarlyNorms.taken(
                clipped,
                None if self._on_device else read_on_host,
                self._meters,
                window.about().on_device,
                window.losses_decide,
            )
        window.early = early
        return early.measured if early.norms else None

    def clip_ends(self) -> None:
        """Clipping is over: the measurement holds as long as nobody touches the gradients."""
        if (stretch := self._stretches.now) is None:
            self._seal()
            return
        try:
            stretch.clip_ends()
        except Exception as error:
            self.failed("stretch", error)

    @fail_open("clip probe")
    def _seal(self) -> None:
        if self._window.early is not None:
            self._window.early.seal()
