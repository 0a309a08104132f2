"""Everything about a run of each model, and presets for common cases."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from holdfast import Section
from holdfast.training import (
    AverageSettings,
    OptimizerSettings,
    ScheduleSettings,
    SeedSettings,
    TrainSettings,
)
from holdfast.training import DataSettings as Loading

from .settings import (
    NORMALIZATIONS,
    DataSettings,
    EncoderSettings,
    HiddenLossSettings,
    InitSettings,
    InpainterSettings,
    MaeSettings,
    NormalizationSettings,
    OutputSettings,
    RegressorSettings,
    ReweightingSettings,
    TasksSettings,
)


def _trained(epochs: int, batch: int, lr: float, schedule: ScheduleSettings) -> TrainSettings:
    """The specification's defaults; static shapes, so no short last batch."""
    return TrainSettings(
        epochs=epochs,
        clip=1.0,
        data=Loading(batch=batch, chunk=256_000, chunk_mb=2048.0, drop_last=True),
        optimizer=OptimizerSettings(lr=lr, weight_decay=1e-4),
        schedule=schedule,
        seed=SeedSettings(seed=42),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _XecRun(Section):
    """What runs of all three models have."""

    kind = ""
    data: DataSettings = DataSettings()
    normalization: NormalizationSettings = NormalizationSettings()
    init: InitSettings = InitSettings()
    output: OutputSettings = OutputSettings()
    model: EncoderSettings = EncoderSettings()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model.encoder_dim < 64:
            # encoder_dim / 32 channels: normalising a single one leaves nothing of the image.
            raise ValueError(f"model.encoder_dim is {self.model.encoder_dim}; give at least 64")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RegressorRun(_XecRun):
    """A run of ``xec.reg``."""

    kind = "reg"
    model: RegressorSettings = RegressorSettings()
    tasks: TasksSettings = TasksSettings()
    loss_balance: Literal["manual", "auto"] = "manual"
    loss_space: Literal["scaled", "physical"] = "scaled"
    reweighting: ReweightingSettings = ReweightingSettings()
    train: TrainSettings = dataclasses.replace(
        _trained(20, 256, 3e-4, ScheduleSettings(warmup_epochs=2, lowest=1e-7)),
        average=AverageSettings(decay=0.999),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        active = self.tasks.active()
        if not active:
            raise ValueError(
                "no task is enabled, so there is nothing to learn; set tasks.energy.enabled=true, "
                "or another of angle, timing, uvwFI, angleVec, n_gamma"
            )
        for name, task in active.items():
            if task.loss_fn == "cosine" and name not in ("angle", "angleVec"):
                raise ValueError(f"tasks.{name}.loss_fn is cosine, which is for directions alone")
            if task.log_transform and name not in ("energy", "timing"):
                raise ValueError(f"tasks.{name}.log_transform is for energy and timing alone")
            if task.against_light and not (name == "energy" and task.log_transform):
                raise ValueError(
                    f"tasks.{name}.against_light is for the energy, together with "
                    "tasks.energy.log_transform=true"
                )
        if "timing" in active and self.data.time_branch == "relative_time":
            raise ValueError(
                "tasks.timing needs absolute times, and data.time_branch is relative_time, which "
                "has the time of the event taken away; set data.time_branch=time"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaeRun(_XecRun):
    """A run of ``xec.mae``."""

    kind = "mae"
    model: MaeSettings = MaeSettings()
    loss: HiddenLossSettings = HiddenLossSettings()
    train: TrainSettings = _trained(20, 1024, 1e-4, ScheduleSettings(lowest=1e-6))


@dataclasses.dataclass(frozen=True, kw_only=True)
class InpainterRun(_XecRun):
    """A run of ``xec.inp``."""

    kind = "inp"
    model: InpainterSettings = InpainterSettings()
    loss: HiddenLossSettings = HiddenLossSettings(beta=0.1)
    train: TrainSettings = _trained(50, 1024, 1e-4, ScheduleSettings(lowest=1e-6))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model.freeze_encoder and self.init.encoder is None:
            raise ValueError(
                "model.freeze_encoder is true and init.encoder null: an encoder that has learned "
                "nothing would stay so; set init.encoder=RUN of xec.mae, or "
                "model.freeze_encoder=false"
            )


AnyRun = RegressorRun | MaeRun | InpainterRun

_SYNTHETIC: Mapping[str, Any] = {
    "normalization": NORMALIZATIONS["synthetic"],
    "data": {"time_branch": "time"},
}
_ON = {"enabled": True}
ALL_TASKS: Mapping[str, Any] = {
    "energy": {**_ON, "loss_beta": 0.0005, "log_transform": True, "against_light": True},
    "uvwFI": {**_ON, "loss_beta": 1.0},
    "timing": {**_ON, "loss_beta": 1e-10},
    "angle": {**_ON, "loss_beta": 10.0},
}
"""The four quantities with the betas that the specification advises, but for the energy's.

Its errors are those of a correction to the sum of light, 0.5 MeV where the beta was for 5."""

# Dropped numbers are noise of some percent on an output that is to be known to one.
_EXACT: Mapping[str, Any] = {
    "channel_dropout_rate": 0.01,
    "fusion_dropout": 0.0,
    "head_dropout": 0.0,
}
_SMALL_ENCODER: Mapping[str, Any] = {
    "encoder_dim": 128,
    "num_fusion_layers": 1,
    "hex_dim": 24,
    "outer_fine_pool": [3, 3],
}
# Minutes on two CPU cores: events are generated, and a small model is trained on them.
_SMALL_TRAIN: Mapping[str, Any] = {
    # A process that loads would take one of two cores from the step.
    "data": {"batch": 32, "chunk": 1024, "workers": 0},
    "optimizer": {"lr": 3e-3},
    "schedule": {"name": "cosine", "warmup_epochs": 0.1},
    "clip": 10.0,
}
_SMALL: Mapping[str, Any] = {
    "data": {"time_branch": "time", "cache": "memmap", "synth": {"events": 3072}},
    "normalization": NORMALIZATIONS["synthetic"],
}

REGRESSOR_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "small": {
        **_SMALL,
        "model": {**_SMALL_ENCODER, **_EXACT, "hidden_dim": 64},
        "tasks": ALL_TASKS,
        "train": {**_SMALL_TRAIN, "epochs": 2, "average": {"decay": 0.98}},
        "loss_balance": "auto",
    },
    "synthetic": {**_SYNTHETIC, "tasks": ALL_TASKS, "model": _EXACT},
    "timing": {"data": {"time_branch": "time"}, "tasks": {"timing": ALL_TASKS["timing"]}},
}
MAE_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "small": {
        **_SMALL,
        "model": {**_SMALL_ENCODER, "decoder_dim": 32},
        "train": {**_SMALL_TRAIN, "epochs": 1},
    },
    "synthetic": _SYNTHETIC,
}
# Heads begin at the mean of the neighbours and learn what is missing, where it is dark as well.
_AGAINST_NEIGHBOURS: Mapping[str, Any] = {"against_neighbours": True, "freeze_encoder": False}
_IN_SPREADS: Mapping[str, Any] = {"npho_unit": "spread", "beta": 2.0}
INPAINTER_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "small": {
        **_SMALL,
        "model": {**_SMALL_ENCODER, **_AGAINST_NEIGHBOURS},
        "loss": _IN_SPREADS,
        "train": {**_SMALL_TRAIN, "epochs": 1},
    },
    "synthetic": {
        **_SYNTHETIC,
        "normalization": {**NORMALIZATIONS["synthetic"], "npho_scale": 1000.0},
        "model": _AGAINST_NEIGHBOURS,
        "loss": _IN_SPREADS,
    },
}


def _machine(batch: int, chunk: int, workers: int, threads: int, compiled: str) -> dict[str, Any]:
    return {
        "train.data.batch": batch,
        "train.data.chunk": chunk,
        "train.data.workers": workers,
        "data.num_threads": threads,
        "train.compile.mode": compiled,
        **_ON_DEVICE,
    }


# What a cache holds goes to the GPU as it is: a fiftieth of the work of a loader.
_ON_DEVICE: Mapping[str, Any] = {"data.device_transform": True}
PLATFORMS: Mapping[str, Mapping[str, Any]] = {
    "cuda": {"train.compile.mode": "reduce-overhead", **_ON_DEVICE},
    "a100": _machine(4096, 262_144, 4, 4, "reduce-overhead"),
    "gh200": _machine(2048, 65_536, 1, 8, "reduce-overhead"),
    "h200": _machine(8192, 65_536, 8, 2, "reduce-overhead"),
    "interactive": _machine(1024, 64_000, 2, 4, "default"),
    "tests": {**_machine(16, 256, 0, 2, "none"), "data.device_transform": False},
}
