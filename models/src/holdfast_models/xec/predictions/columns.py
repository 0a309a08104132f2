"""The columns of prediction files, and how they come from what a model says about a batch.

Files are in the units of input files, photons and seconds; 1e10 stands where there is no value.

Shapes: B events, S sensors, R hidden sensors.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..data.normalization import NOT_AVAILABLE, npho_from_scale, time_from_scale
from ..geometry.layout import face_of_sensor
from ..settings import NormalizationSettings

TREES = {"reg": "val_tree", "mae": "tree", "inp": "tree", "dead": "tree"}

_F, _I, _L, _U = torch.float32, torch.int32, torch.int64, torch.uint8
_OUTPUTS = ("theta", "phi", "energy", "timing", "u", "v", "w", "dir_x", "dir_y", "dir_z")
_CHANNELS = ("npho", "time")
VECTORS = ("truth_npho", "truth_time", "mask", "masked_npho", "masked_time", "pred_npho",
           "err_npho", "pred_time", "err_time")  # fmt: skip
"""Columns of the autoencoder that hold a value for every sensor."""

COLUMNS: Mapping[str, Mapping[str, torch.dtype]] = {
    "reg": {
        **dict.fromkeys(("run_id", "event_id"), _L),
        **dict.fromkeys((f"{what}_{name}" for name in _OUTPUTS for what in ("pred", "true")), _F),
        **dict.fromkeys((f"{name}_log_var" for name in _OUTPUTS), _F),
        **dict.fromkeys(("pred_n_gamma", "true_n_gamma"), _I),
        **dict.fromkeys(("opening_angle", "x_vtx", "y_vtx", "z_vtx"), _F),
    },
    "mae": {
        **dict.fromkeys(("event_id", "run", "event"), _L),
        **dict.fromkeys(VECTORS, _F),
        "mask": _U,
    },
    "inp": {
        "event_idx": _I,
        **dict.fromkeys(("run_number", "event_number"), _L),
        **dict.fromkeys(("sensor_id", "face"), _I),
        **dict.fromkeys((f"{w}_{c}" for c in _CHANNELS for w in ("truth", "pred", "error")), _F),
    },
    "dead": {
        **dict.fromkeys(("run", "event"), _L),
        "n_dead": _I,
        **dict.fromkeys((f"energy_{how}" for how in ("raw", "neighavg", "inpainted", "true")), _F),
    },
}
"""Type of each column, in their order."""


def file_rows(
    kind: str, predictions: Mapping[str, Tensor], normalization: NormalizationSettings
) -> dict[str, Tensor]:
    """What goes into a file of what a task predicts for a batch.

    Models that fill in sensors say ``mask``, ``truth_*``, ``masked_*`` and ``pred_*`` (B, S) in
    the network's scale, sentinels where nothing was measured; the others say columns.
    """
    if kind == "mae":
        return _reconstruction_rows(predictions, normalization)
    return _inpainting_rows(predictions, normalization) if kind == "inp" else dict(predictions)


def physical(scaled: Tensor, normalization: NormalizationSettings, channel: str) -> Tensor:
    """Photons or seconds from what a model says; a root below zero is no photon, not some."""
    scaled = scaled.float()
    if channel == "time":
        return time_from_scale(scaled, normalization)
    if normalization.npho_scheme in ("sqrt", "anscombe"):
        scaled = scaled.clamp(min=0.0)
    return npho_from_scale(scaled, normalization)


def measured(scaled: Tensor, normalization: NormalizationSettings, channel: str) -> Tensor:
    """Photons or seconds of normalised values, 1e10 where there is the sentinel."""
    sentinel = getattr(normalization, f"sentinel_{channel}")
    values = (npho_from_scale if channel == "npho" else time_from_scale)(scaled, normalization)
    return torch.where(scaled == sentinel, NOT_AVAILABLE, values)


def _reconstruction_rows(
    said: Mapping[str, Tensor], normalization: NormalizationSettings
) -> dict[str, Tensor]:
    rows = {name: said[name] for name in ("run", "event", "mask")}
    for channel in _CHANNELS:
        truth_BS = measured(said[f"truth_{channel}"], normalization, channel)
        rows[f"truth_{channel}"] = truth_BS
        rows[f"masked_{channel}"] = torch.where(said["mask"].bool(), NOT_AVAILABLE, truth_BS)
        if f"pred_{channel}" in said:
            pred_BS = physical(said[f"pred_{channel}"], normalization, channel)
            rows[f"pred_{channel}"] = pred_BS
            rows[f"err_{channel}"] = _error(pred_BS, truth_BS)
    return rows


def _inpainting_rows(
    said: Mapping[str, Tensor], normalization: NormalizationSettings
) -> dict[str, Tensor]:
    event_R, sensor_R = said["mask"].nonzero(as_tuple=True)
    face_S = torch.tensor(face_of_sensor())
    rows = {
        "event_idx": event_R,  # in the batch; the writer knows where the batch is
        "run_number": said["run"][event_R],
        "event_number": said["event"][event_R],
        "sensor_id": sensor_R,
        "face": face_S[sensor_R],
    }
    for channel in _CHANNELS:
        if f"pred_{channel}" not in said:
            continue
        truth_R = measured(said[f"truth_{channel}"][event_R, sensor_R], normalization, channel)
        pred_R = physical(said[f"pred_{channel}"][event_R, sensor_R], normalization, channel)
        rows[f"truth_{channel}"] = truth_R
        rows[f"pred_{channel}"] = pred_R
        rows[f"error_{channel}"] = _error(pred_R, truth_R)
    return rows


def _error(pred: Tensor, truth: Tensor) -> Tensor:
    return torch.where(truth == NOT_AVAILABLE, NOT_AVAILABLE, pred - truth)
