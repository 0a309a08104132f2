"""All settings of a training run, put together from the parts that read it."""

from __future__ import annotations

import dataclasses

from ..config import Section, Settings, bounded
from .averaging import AverageSettings
from .channels import LogSettings
from .compiling import CompileSettings
from .data.loading import DataSettings
from .loop.health import HealthSettings
from .loop.profiling import ProfileSettings
from .loop.stopping import StopSettings
from .loop.validation import ValidationSettings
from .optimizers import OptimizerSettings
from .optimizers import check as check_optimizer
from .parallel import ParallelName
from .precision import PrecisionName
from .schedules import ScheduleSettings
from .seeding import SeedSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSettings(Section):
    """How a task is trained; the defaults work.

    ``epochs`` and ``steps`` may both be given: what is reached first ends the run.
    """

    epochs: int | None = bounded(1, 1)
    steps: int | None = bounded(None, 1)  # optimizer steps
    device: str = "auto"  # auto, cpu, cuda, cuda:1
    precision: PrecisionName = "auto"
    accumulate: int = bounded(1, 1)  # micro-batches to one optimizer step
    parallel: ParallelName = "ddp"  # several ranks: each the whole model, or fsdp, a share of it
    replicas: int = bounded(1, 1)  # fsdp: copies of the model, each shared by a part of the ranks
    shard: tuple[str, ...] = ()  # fsdp: modules gathered one at a time, "blocks.*"; found if empty
    # Ranks average gradients after backward: then one that runs out of memory can split its batch.
    reduce_late: bool = False
    clip: float | None = bounded(1.0, 0.0, above=True)  # largest global gradient norm
    anomaly: int = bounded(0, 0)  # first so many steps under autograd's anomaly mode: slow
    recompute: tuple[str, ...] = ()  # modules whose activations are computed again, "blocks.*"
    graph: bool = False  # forward, loss and backward as CUDA graphs, where they can be captured
    seed: SeedSettings = SeedSettings()
    data: DataSettings = DataSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    average: AverageSettings = AverageSettings()
    validation: ValidationSettings = ValidationSettings()
    stop: StopSettings = StopSettings()
    health: HealthSettings = HealthSettings()
    compile: CompileSettings = CompileSettings()
    profile: ProfileSettings = ProfileSettings()
    log: LogSettings = LogSettings()
    holdfast: Settings = Settings()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs is None and self.steps is None:
            raise ValueError("epochs and steps are both null: the run would never end")
        if self.replicas > 1 and self.parallel != "fsdp":
            raise ValueError(
                f"replicas={self.replicas} are copies of a model that ranks share; "
                "set parallel=fsdp, with ddp each rank has a copy"
            )
        if self.reduce_late and self.parallel == "fsdp":
            raise ValueError(
                "reduce_late goes with parallel=ddp: a rank that begins a step anew would leave "
                "the others waiting for its share of the weights"
            )
        check_optimizer(self.optimizer)  # before anybody builds a model
