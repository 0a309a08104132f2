"""What the loop works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from ...watching.watch import Watch
from ..averaging import Average
from ..compiling import Compiled
from ..data.loaders import Feed
from ..data.transfer import Transfer
from ..device import Place
from ..precision import Precision
from ..schedules import Schedule
from ..settings import TrainSettings
from ..step_loss import StepLoss
from .accumulation import Window
from .health import Health
from .profiling import Profiler
from .reporting import StepReporter
from .validation_schedule import ValidationSchedule


@dataclass(kw_only=True)
class Parts:
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
    compiled: Compiled
    transfer: Transfer
    watch: Watch
    window: Window
    telling: StepReporter
    health: Health
    examination: ValidationSchedule
    profiler: Profiler
    stepped: Callable[[int], bool | None] | None
    feed: Feed
    say: Callable[[str], None]
