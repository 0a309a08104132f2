"""What the regressor is worth, from the rows of all ranks at once.

A row is an event; columns are named as in prediction files: ``pred_energy``, ``true_energy``,
``pred_energy_log_var`` and so on. Energies in GeV, lengths in cm, angles in degrees and times in
seconds, as in files; the metrics of timing are in ps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from holdfast import HoldfastError

from ..geometry.coordinates import angle_between, direction_of, xyz_of
from .resolution import SHARE, core_fit, effective_sigma

Floats = NDArray[Any]
Columns = Mapping[str, Floats]

QUANTITIES: Mapping[str, tuple[str, ...]] = {
    "angle": ("theta", "phi"),
    "energy": ("energy",),
    "timing": ("timing",),
    "uvwFI": ("u", "v", "w"),
}
"""The columns of each task, after ``pred_`` and ``true_``."""
PS = 1e12  # of a second
_LARGEST = 9e9  # anything above means that files hold no value
_NAN = float("nan")


def regression_metrics(rows: Mapping[str, Tensor | Floats]) -> dict[str, float]:
    """Every number of the tasks whose columns are there.

    Which numbers there are depends on the columns alone, never on the values: a number that
    cannot be computed is NaN. Rows without a finite prediction or truth of any task are counted
    in ``nonfinite_rows``; each task is measured on the rows that are finite in its own columns.
    """
    columns = as_columns(rows)
    values = [column for name, column in columns.items() if name.startswith(("pred_", "true_"))]
    bad = np.zeros(len(values[0]) if values else 0, dtype=bool)
    for column in values:
        bad |= ~_known(column)
    found: dict[str, float] = {}
    for task, measure in _MEASURES.items():
        if all(f"{side}_{name}" in columns for name in QUANTITIES[task] for side in _SIDES):
            found |= measure(known_rows(columns, task))
    if "pred_n_gamma" in columns and "true_n_gamma" in columns:
        right = columns["pred_n_gamma"] == columns["true_n_gamma"]
        found["n_gamma_accuracy"] = _mean(right.astype(float))
    return found | {"events": float(len(bad)), "nonfinite_rows": float(bad.sum())}


def as_columns(rows: Mapping[str, Tensor | Floats]) -> dict[str, Floats]:
    """Rows as columns of double precision, all of one length; ``energy_log_var`` and the like are
    also found under this shorter name."""
    columns: dict[str, Floats] = {}
    for name, values in rows.items():
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
        columns[_column(name)] = np.asarray(array, dtype=np.float64)
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise HoldfastError(
            f"columns of predictions differ in length: {lengths}; every event is one row of each"
        )
    return columns


def known_rows(columns: Columns, task: str) -> dict[str, Floats]:
    """The rows in which predictions and truth of a task are finite numbers, and no sentinels."""
    own = [columns[f"{side}_{name}"] for name in QUANTITIES[task] for side in _SIDES]
    known = np.logical_and.reduce([_known(one) for one in own])
    return {name: column[known] for name, column in columns.items()}


def residual_of(columns: Columns, name: str) -> Floats:
    """Predicted minus true; of an azimuth the short way round."""
    residual = columns[f"pred_{name}"] - columns[f"true_{name}"]
    return (residual + 180) % 360 - 180 if name == "phi" else residual


def opening_angle(columns: Columns) -> Floats:
    """Degrees between predicted and true direction."""
    predicted, true = (
        direction_of(_stacked(columns, side, QUANTITIES["angle"])) for side in _SIDES
    )
    return angle_between(predicted, true).rad2deg().numpy()


def _angle(columns: Columns) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in QUANTITIES["angle"]:
        residual = residual_of(columns, name)
        found[f"{name}_bias"] = _mean(residual)
        found[f"{name}_rms"] = _mean(residual**2) ** 0.5
        found[f"{name}_skew"] = _skew(residual)
        found |= _calibration(columns, name)
    psi = opening_angle(columns)
    resolution = _quantile(psi)
    return found | {
        "angle_resolution_68pct": resolution,
        "val_resolution_deg": resolution,
        "cos": _mean(1 - np.cos(np.radians(psi))),
    }


def _energy(columns: Columns) -> dict[str, float]:
    residual, true = residual_of(columns, "energy"), columns["true_energy"]
    relative = residual[true > 0] / true[true > 0]
    return {
        "energy_bias": _mean(residual),
        "energy_res_68pct": _quantile(residual),
        "energy_rel_bias": _mean(relative),
        "energy_rel_res_68pct": _quantile(relative),
        "energy_core_sigma": core_fit(residual).sigma,
        "energy_eff_sigma": effective_sigma(residual),
        "energy_rel_core_sigma": core_fit(relative).sigma,
        "energy_rel_eff_sigma": effective_sigma(relative),
        **_calibration(columns, "energy"),
    }


def _timing(columns: Columns) -> dict[str, float]:
    residual = residual_of(columns, "timing") * PS
    return {
        "timing_bias": _mean(residual),
        "timing_res_68pct": _quantile(residual),
        "timing_core_sigma": core_fit(residual).sigma,
        **_calibration(columns, "timing", unit=PS),
    }


def _position(columns: Columns) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in QUANTITIES["uvwFI"]:
        residual = residual_of(columns, name)
        found[f"uvw_{name}_bias"] = _mean(residual)
        found[f"uvw_{name}_res_68pct"] = _quantile(residual)
        found |= {f"uvw_{key}": value for key, value in _calibration(columns, name).items()}
    predicted, true = (xyz_of(_stacked(columns, side, QUANTITIES["uvwFI"])) for side in _SIDES)
    found["uvw_dist_68pct"] = _quantile((predicted - true).norm(dim=-1).numpy())
    # Seen from the target, in the middle of the detector.
    found["cos_pos"] = _mean(1 - angle_between(predicted, true).cos().numpy())
    return found


_SIDES = ("pred", "true")
_MEASURES = {"angle": _angle, "energy": _energy, "timing": _timing, "uvwFI": _position}


def _column(name: str) -> str:
    short = name.endswith("_log_var") and not name.startswith("pred_")
    return f"pred_{name}" if short else name


def _known(column: Floats) -> NDArray[np.bool_]:
    return np.isfinite(column) & (np.abs(column) <= _LARGEST)


def _stacked(columns: Columns, side: str, names: tuple[str, ...]) -> Floats:
    return np.stack([columns[f"{side}_{name}"] for name in names], axis=-1)


def _calibration(columns: Columns, name: str, *, unit: float = 1.0) -> dict[str, float]:
    """How wide the model says it is, beside how wide it is; nothing without ``log_var``."""
    log_var = columns.get(f"pred_{name}_log_var")
    if log_var is None:
        return {}
    predicted = _mean(np.exp(0.5 * log_var)) * unit
    actual = float(residual_of(columns, name).std()) * unit if len(log_var) else _NAN
    ratio = predicted / actual if actual > 0 else _NAN
    return {f"{name}_pred_std_mean": predicted, f"{name}_calibration_ratio": ratio}


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else _NAN


def _quantile(values: Floats) -> float:
    """The 68th percentile of the absolute values."""
    return float(np.quantile(np.abs(values), SHARE)) if len(values) else _NAN


def _skew(values: Floats) -> float:
    spread = float(values.std()) if len(values) else 0.0
    return _mean(((values - values.mean()) / spread) ** 3) if spread > 0 else _NAN
