"""Probes: measurements inside training that never wait for the device.

Every module names its columns of the step row in ``COLUMNS`` with one line of meaning each;
``STEP_COLUMNS`` is their union in file order. A value that was not measured on a step is NaN.
"""

from __future__ import annotations

from . import (
    baseline,
    batches,
    gradients,
    host,
    learning_rate,
    loss,
    memory,
    model_state,
    timing,
)

PROBES = (loss, gradients, model_state, learning_rate, batches, timing, memory, host)

GUARD_COLUMNS = {
    "opt": "index of the optimizer that stepped",
    "skipped": "1 when holdfast skipped this step",
    "scaler_skipped": "1 when the user's GradScaler skipped it",
    "scale": "scale of the user's GradScaler, NaN without one",
    "guard": "host seconds spent in holdfast during this step",
    "guard_device": "device seconds of holdfast's own kernels beyond the host's, sampled",
    "guard_hidden": "1 when the device was behind, so that host seconds cost nothing; sampled",
}

STEP_COLUMNS: dict[str, str] = {}
for _probe in PROBES:
    STEP_COLUMNS.update(_probe.COLUMNS)
STEP_COLUMNS.update(GUARD_COLUMNS)
STEP_COLUMNS.update(baseline.COLUMNS)

__all__ = ["GUARD_COLUMNS", "PROBES", "STEP_COLUMNS"]
