"""What was measured since the last step: losses, and norms from before the script clipped."""

from __future__ import annotations

from ..probes.loss import Losses
from ..probes.ranks import ranks
from .norms_before_clip import NormsBeforeClip
from .registry import OptimizerRegistry
from .step_writer import StepWriter


class StepWindow:
    """The backward passes from one step to the next.

    Args:
        registry: of the optimizers.
        read: whether a loss on the CPU may be read by the host.
    """

    def __init__(self, registry: OptimizerRegistry, *, read: bool) -> None:
        self.losses = Losses(read=read)
        """Those since the last step."""
        self.previous = self.losses
        """Those of the last step."""
        self.early: NormsBeforeClip | None = None
        """Norms from before the script clipped its gradients."""
        self.read = read
        self._registry = registry

    def about(self) -> Losses:
        """The losses this step is about; optimizers sharing one loss share one window."""
        return self.losses if self.losses.passes else self.previous

    def losses_decide(self) -> bool:
        """Whether a bad loss alone makes the step bad."""
        # Ranks see different losses and must decide alike; and whose loss it is must be clear.
        one = len(self._registry) <= 1
        return ranks() == 1 and (one or self.about().count == 1)

    def drop(self) -> None:
        """The gradients since the last step were cleared."""
        self.losses = Losses(read=self.read)

    def drop_early(self, writer: StepWriter) -> None:
        """The norms from before clipping hold no longer."""
        early, self.early = self.early, None
        if early is not None and early.on_device is not None and not early.used:
            writer.discard(early.on_device.row)
