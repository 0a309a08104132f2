"""Detectors of the calorimeter: data and settings that spoil a training; never imports torch.

They read the records of the trainer (``numbers`` every 50 steps) and are silent in runs of
anything else. Most causal first.
"""

from __future__ import annotations

from .beta_too_large import BetaTooLarge
from .dead_sensor_drift import DeadSensorDrift
from .input_out_of_range import InputOutOfRange
from .sentinel_target import SentinelTarget

__all__ = ["DETECTORS", "BetaTooLarge", "DeadSensorDrift", "InputOutOfRange", "SentinelTarget"]

DETECTORS = (SentinelTarget, InputOutOfRange, BetaTooLarge, DeadSensorDrift)
"""For the plugin group ``holdfast.detectors``."""
