"""All that the next decisions of the guard depend on, as plain data: it goes with a checkpoint.

A resumed script must be clipped, skipped and rolled back as it would have been without the
interruption: baselines, how far each event has gone, what the policy has used up, which losses the
script has read. Snapshots cannot go with it: the first one of the resumed process is the checkpoint
itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..diagnosis.nonfinite.investigation import Investigation
from ..recovery.rollback import Recovery
from .finite_loss import FiniteLoss
from .optimizer_guard import parameters_of
from .step_writer import StepWriter


class Decisions:
    """What was learned and counted for the decisions of one process."""

    def __init__(
        self,
        writer: StepWriter,
        recovery: Recovery,
        investigation: Investigation,
        finite_loss: FiniteLoss,
    ) -> None:
        self._training = writer.training
        self._writer, self._recovery = writer, recovery
        self._investigation, self._finite_loss = investigation, finite_loss

    def state(self, iterator: Any) -> dict[str, Any] | None:
        """What to save between two steps; None while something is suspected or tried.

        ``iterator`` is that of the loader which feeds the loop.
        """
        # What a device has decided must be known here: once for each checkpoint.
        self._writer.await_rows()
        if not self._recovery.settled:
            return None
        guards = {
            guard.index: {"stepped": guard.stepped, "outliers": guard.outliers.state()}
            for _, guard in self._training.guards()
        }
        return {
            "guards": guards,
            "comparability": self._training.comparability.state(iterator),
            "memory": self._training.memory.state(),
            "writer": self._writer.state(),
            "recovery": self._recovery.state(),
            "investigation": self._investigation.state(),
            "finite_loss": self._finite_loss.state(),
        }

    def restore(self, state: Mapping[str, Any], iterator: Any) -> None:
        """Go on from what ``state`` gave; weights, state and buffers have been restored."""
        self._training.restored()
        for optimizer, guard in self._training.guards():
            known = state["guards"].get(guard.index)
            if known is None:
                continue
            parameters = parameters_of(optimizer)
            if parameters:
                guard.outliers.restore(known["outliers"], parameters[0].device)
            guard.stepped = known["stepped"]
        self._training.comparability.restore(state["comparability"], iterator)
        self._training.memory.restore(state["memory"])
        self._writer.restore(state["writer"])
        self._recovery.restore(state["recovery"])
        self._recovery.checkpoints.resumed(self._training.iteration)
        self._investigation.restore(state["investigation"])
        self._finite_loss.restore(state["finite_loss"])
