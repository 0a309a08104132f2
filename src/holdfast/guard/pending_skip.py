"""How a step of one optimizer is skipped: armed before the step, settled after it.

By what the optimizer can do: gradients that are known to be bad on the host are hidden from torch's
own, and a step of the script's is not called; a fused kernel reads ``found_inf`` by itself; any
other step runs and is undone by one kernel from a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..actions import foreign_step
from ..actions.foreign_step import NOT_CALLED, PUT_BACK
from ..actions.skip_update import HideGradients, RaiseFoundInf, StepSnapshot
from ..actions.switch_to_fused import begin_momentum
from ..probes.readback import wait_for

HIDDEN = "hidden gradients"
FUSED = "fused"
SNAPSHOT = "snapshot"


class PendingSkip:
    """The skip of one optimizer."""

    def __init__(self) -> None:
        self.pending = ""
        """Which of the ways is armed; empty between two steps."""
        self._hide = HideGradients()
        self._raise = RaiseFoundInf()
        self._snapshot = StepSnapshot()
        # Parameters that have been through a step, and those of the last one.
        self._seasoned: set[int] = set()
        self._last: Sequence[int] = ()

    def hide(self, optimizer: Optimizer) -> None:
        """The step is known to be bad: it is not called, or without gradients, or undone."""
        self.pending = foreign_step.skip(optimizer)
        if not self.pending:
            self._hide.before(optimizer)
            self.pending = HIDDEN

    def on_device(
        self,
        optimizer: Optimizer,
        flag: Tensor,
        positions: Sequence[int],
        device: torch.device,
        *,
        fused: bool,
        united: Tensor | None = None,
    ) -> None:
        """The flag on the device will say whether the step counts.

        ``positions`` are the parameters that have gradients; ``fused`` says that the optimizer's
        kernel reads the flag itself, ``united`` is the flag with what a scaler has found.
        """
        if positions is not self._last and not self._is_seasoned(positions):
            # State is about to be created, and a skipped first step must leave none behind (fused
            # SGD would go on with an uninitialised momentum buffer, others with a counter that
            # says one): look at the flag on the host, this once.
            if wait_for(flag):
                self.hide(optimizer)
            else:
                begin_momentum(optimizer)
                self._seasoned.update(positions)
                self._last = positions
        elif fused:
            self._raise.before(optimizer, flag, united)
            self.pending = FUSED
        else:
            self._snapshot.before(optimizer, device)
            self.pending = SNAPSHOT

    def _is_seasoned(self, positions: Sequence[int]) -> bool:
        """Whether every parameter in this step has been through one before."""
        if self._seasoned.issuperset(positions):
            self._last = positions
            return True
        return False

    def settle(self, optimizer: Optimizer, flag: Tensor | None) -> Sequence[tuple[Any, float]]:
        """The step is over; host counters that moved with it, where it may have been undone.

        Without a flag nothing is undone: a ``step()``, or something of ours, has raised.
        """
        pending, self.pending = self.pending, ""
        if pending == HIDDEN:
            self._hide.after()
        elif pending in (NOT_CALLED, PUT_BACK):
            foreign_step.settle(optimizer)
        elif pending == FUSED:
            self._raise.after(optimizer)
        elif pending == SNAPSHOT and flag is not None:
            return self._snapshot.after(optimizer, flag)
        return ()

    def forget(self) -> None:
        """The optimizer's state may be another one: the next step is a first step again."""
        self._seasoned, self._last = set(), ()
