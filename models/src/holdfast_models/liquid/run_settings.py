"""Everything about a run, and the sizes it comes in."""

from __future__ import annotations

import dataclasses
from typing import Literal

from holdfast import Section, bounded
from holdfast.training import (
    BandSettings,
    HealthSettings,
    OptimizerSettings,
    ScheduleSettings,
    TrainSettings,
    ValidationSettings,
)
from holdfast.training import DataSettings as Loading

from .settings import ContinualSettings, DataSettings, ModelSettings, PlasticitySettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class LiquidSettings(Section):
    """Everything about a run of the family."""

    task: Literal["llm", "vision", "robotics"] = "llm"
    label_smoothing: float | None = bounded(None, 0.0, 1.0)  # null: 0.05 for images, else 0
    pictures: bool = True  # drawn at the end, for the report
    self_check: bool = True  # every parameter must have had a gradient after five steps
    model: ModelSettings = ModelSettings()
    plasticity: PlasticitySettings = PlasticitySettings()
    continual: ContinualSettings = ContinualSettings()
    data: DataSettings = DataSettings()
    train: TrainSettings = TrainSettings(
        epochs=None,
        steps=800,  # under five minutes on two cores
        clip=0.5,
        data=Loading(batch=16, workers=0, drop_last=True),
        optimizer=OptimizerSettings(lr=2e-3, weight_decay=0.01, betas=(0.9, 0.999)),
        schedule=ScheduleSettings(name="cosine", warmup=50, floor=0.05),
        validation=ValidationSettings(batches=32),
        # The bands of the specification.
        health=HealthSettings(
            every=50, bands={"grad_norm": BandSettings(low=0.5, high=5.0, critical=10.0)}
        ),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task == "llm" and self.data.sequence_length > self.model.max_position_embeddings:
            raise ValueError(
                f"data.sequence_length is {self.data.sequence_length}, "
                f"model.max_position_embeddings {self.model.max_position_embeddings}; "
                "positions beyond it have no embedding"
            )
        tasks = self.continual
        if tasks.on and self.train.epochs is None:
            raise ValueError("continual.on counts tasks in epochs: set train.epochs")
        if tasks.on and (self.train.epochs or 0) < tasks.num_tasks:
            raise ValueError(
                f"train.epochs is {self.train.epochs}, continual.num_tasks {tasks.num_tasks}; "
                "a task takes at least one epoch"
            )
        if tasks.on and self.train.data.workers != 0:
            raise ValueError(
                f"continual.on changes the data between epochs, which loader processes do not "
                f"see; set train.data.workers=0, not {self.train.data.workers}"
            )
