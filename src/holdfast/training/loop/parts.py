"""What the loop works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from ...watching.watch import Watch
from ..averaging import Average
from ..compiling import CompiledModel
from ..data.loaders import EpochLoaders
from ..data.transfer import Transfer
from ..device import Place
from ..precision import Precision
from ..schedules import Schedule
from ..settings import TrainSettings
from ..step_loss import StepLoss
from .accumulation import AccumulationWindow
from .health import Health
from .profiling import Profiler
from .reporting import StepReporter
from .validation_schedule import ValidationSchedule


@dataclass(kw_only=True)
class LoopParts:
    """What the loop works with; made by the trainer, in place and on its device."""

    settings: TrainSettings
    place: Place
    model: nn.Module
    net: nn.Module
    """The model as it is called: wrapped where there are several ranks."""
    loss: StepLoss
    schedule: Schedule
    average: Average | None
    precision: Precision
    compiled: CompiledModel
    transfer: Transfer
    watch: Watch
    window: AccumulationWindow
    step_reporter: StepReporter
    health: Health
    examination: ValidationSchedule
    profiler: Profiler
    stepped: Callable[[int], bool | None] | None
    epoch_loaders: EpochLoaders
    say: Callable[[str], None]
