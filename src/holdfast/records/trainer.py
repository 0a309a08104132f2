"""Epochs, validations and numbers of the trainer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, Self

from .base import Kind


class TrainerSetup(Kind, kind="setup"):
    """How the trainer trains: what it has chosen for this machine, and how large the model is."""

    precision: str
    """Type of the numbers of a pass."""
    compile: str
    """How the model was compiled; empty where it was not."""
    workers: int
    """Processes that load batches."""
    parameters: int | None = None
    """How many numbers the model has."""
    trained_parameters: int | None = None
    """How many of them are trained."""


class SettingsChanged(Kind, kind="settings_changed"):
    """A resumed run goes on with other settings of the optimizer than those of its checkpoint."""

    changes: tuple[str, ...]
    """One phrase for each: its name, what it was, what it is."""


class EpochBegins(Kind, kind="epoch_begins"):
    """A pass over the data begins."""

    epoch: int
    """Counted from 1."""


class EpochEnded(Kind, kind="epoch"):
    """A pass over the data is through. What was not measured, or not finite, is None."""

    epoch: int
    """Counted from 0."""
    step: int
    """Optimizer steps so far."""
    loss: float | None = None
    """Mean of its last steps."""
    throughput_samples_per_sec: float | None = None
    """Over all ranks."""
    epoch_seconds: float | None = None
    """Without validations, checkpoints and compiling."""
    data_wait_fraction: float | None = None
    """Share of the time that the loop waited for data."""
    memory_peak_gb: float | None = None
    """Most memory so far: of tensors on a GPU, else of the process."""
    process_rss_gb: float | None = None
    """Resident memory of the process at its end."""
    skipped_steps: int | None = None
    """In the run so far."""
    learning_rate: float | None = None
    """At its end."""
    grad_norm_max: float | None = None
    """The largest gradient norm."""


class TrainingNumbers(Kind, kind="numbers"):
    """Means over the last steps, by name: those of the trainer, and what the loss function gives.

    The names are the keys of the event.
    """

    values: Mapping[str, float]
    """Means by name."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dict(self.values)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read plain data back; what is no number is a ``RecordError``."""
        return super().from_dict({"values": data})


class Validated(Kind, kind="validation"):
    """A validation: its numbers by name, which are keys of the event beside ``best``."""

    values: Mapping[str, float]
    """Numbers by name."""
    best: bool = False
    """Whether it is the best so far."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**self.values, "best": self.best}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read plain data back; what is no number is a ``RecordError``."""
        values = {name: value for name, value in data.items() if name != "best"}
        best = {"best": data["best"]} if "best" in data else {}
        return super().from_dict({"values": values, **best})


class ValidationSpike(Kind, kind="validation_spike"):
    """A validation was far above the best one."""

    metric: str
    """Name of the number."""
    value: float
    """Of this validation."""
    best: float
    """The best one so far."""
    best_step: int
    """Its step."""
    restored: bool
    """Whether the best state was put back."""
    why_not: str
    """Why it was not, where that was asked for."""


class GradientNormTotals(Kind, kind="gradient_norms"):
    """How large gradients were before clipping, over an epoch or the whole run."""

    steps: int
    """How many were measured."""
    grad_norm_max: float
    """The largest."""
    p50: float
    """Percentiles of the norm."""
    p90: float
    """Nine in ten are below."""
    p99: float
    """All but one in a hundred are below."""
    clip: float | None
    """The largest norm that is let through; None: any."""
    clipped: float
    """Share of the steps taken that were clipped."""
    line: str
    """The same for people, in one clause."""
    advice: str
    """What the norms say about the clip; empty where it does what a clip is for."""
    epoch: int | None = None
    """Counted from 0; None for the whole run."""
    bands: Mapping[str, int] | None = None
    """Steps by how the norm was judged, where the settings say what is healthy."""


class OutOfBand(Kind, kind="health"):
    """A number was out of the band in which it is healthy."""

    number: str
    """Its name."""
    value: float
    """What was measured."""
    state: Literal["low", "high", "critical", "non-finite"]
    """On which side of its band it is."""
    low: float | None
    """None: no limit on that side, as in ``high`` and ``critical``."""
    high: float | None
    """Upper end of the healthy band."""
    critical: float | None
    """From here on it is critical."""
    band: str
    """Where the band comes from: a setting, or the median of the run."""


class HookFailed(Kind, kind="hook_failed"):
    """A hook of the task raised an exception; the training went on."""

    hook: str
    """``improved`` or ``ended``."""
    step: int
    error: str
    errors: int
    """How many calls have failed so far."""


class TrainingEnded(Kind, kind="training_ended"):
    """The trainer is done."""

    why: str
    interrupted: bool
    """Whether it was told to stop by a signal."""
    best: float = math.nan
    """The best validation; NaN without one."""
    best_step: int = 0
    """Step of the best validation."""
    step: int = 0
    """Optimizer steps so far, those before a resume included."""
    seconds: float = math.nan
    """Since it began, validations and compiling included."""
