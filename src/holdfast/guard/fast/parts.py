"""What fast steps share with the plain ones."""

from __future__ import annotations

from typing import NamedTuple

from ...diagnosis.nonfinite.investigation import Investigation
from ...diagnosis.watchers import Watchers
from ...recovery.last_state import LastState
from ...recovery.rollback import Recovery
from ..batch_source import BatchSource
from ..finite_loss import FiniteLoss
from ..grad_scaler import Scaling
from ..step_window import StepWindow
from ..step_writer import StepWriter


class EngineParts(NamedTuple):
    """Parts of the engine's state that fast steps work with."""

    writer: StepWriter
    investigation: Investigation
    recovery: Recovery
    last_state: LastState
    watchers: Watchers
    finite_loss: FiniteLoss
    scaling: Scaling
    batch_source: BatchSource
    window: StepWindow
