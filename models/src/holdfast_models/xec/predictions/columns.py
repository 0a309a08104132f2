"""The columns of prediction files, and how they come from what a model says about a batch.

Values are in the units of the input files; 1e10 stands where there is none.

Shapes: B events, S sensors, C predicted channels, O outputs of a task, R hidden sensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..data.normalization import NOT_AVAILABLE, Inputs, npho_from_scale, time_from_scale
from ..geometry.layout import face_of_sensor
from ..settings import NormalizationSettings, TaskSettings

TREES = {"reg": "val_tree", "mae": "tree", "inp": "tree"}

PARTS = {
    "angle": ("theta", "phi"),
    "energy": ("energy",),
    "timing": ("timing",),
    "uvwFI": ("u", "v", "w"),
    "angleVec": ("vec_x", "vec_y", "vec_z"),
}
"""The outputs of each task by name; classes are told by ``n_gamma`` alone."""

_F, _I, _L = "<f4", "<i4", "<i8"
_OUTPUTS = [name for names in PARTS.values() for name in names]
_VECTORS = ("truth_npho", "truth_time", "mask", "masked_npho", "masked_time", "pred_npho",
            "err_npho", "pred_time", "err_time")  # fmt: skip

COLUMNS: Mapping[str, Mapping[str, tuple[str, bool]]] = {
    "reg": {
        "run_id": (_L, False),
        "event_id": (_L, False),
        **{f"{what}_{name}": (_F, False) for name in _OUTPUTS for what in ("pred", "true")},
        **{f"pred_{name}_log_var": (_F, False) for name in _OUTPUTS},
        "pred_n_gamma": (_I, False),
        "true_n_gamma": (_I, False),
        "opening_angle": (_F, False),
        **{f"{axis}_vtx": (_F, False) for axis in "xyz"},
        **{f"energy_{how}": (_F, False) for how in ("raw", "neighavg", "inpainted")},
        "n_dead": (_I, False),
    },
    "mae": {
        "event_id": (_L, False),
        "run": (_L, False),
        "event": (_L, False),
        **{name: ("|u1" if name == "mask" else _F, True) for name in _VECTORS},
    },
    "inp": {
        "event_idx": (_I, False),
        "run_number": (_L, False),
        "event_number": (_L, False),
        "sensor_id": (_I, False),
        "face": (_I, False),
        **{
            f"{what}_{channel}": (_F, False)
            for channel in ("npho", "time")
            for what in ("truth", "pred", "error")
        },
    },
}
"""Type of each column, and whether a row holds a value for every sensor; in their order."""


def regression_rows(
    outputs: Mapping[str, Tensor], batch: Mapping[str, Tensor], tasks: Mapping[str, TaskSettings]
) -> dict[str, Tensor]:
    """What a regressor says about each event, beside the truth where the batch has it."""
    rows = {"run_id": batch["run"], "event_id": batch["event"]}
    for task, output in outputs.items():
        if task == "n_gamma":
            rows["pred_n_gamma"] = output.argmax(-1)
            if task in batch:
                rows["true_n_gamma"] = batch[task]
            continue
        names = PARTS[task]
        pred_BO = output.float()
        for index, name in enumerate(names):
            rows[f"pred_{name}"] = pred_BO[:, index]
            if tasks[task].loss_fn == "gaussian_nll":
                rows[f"pred_{name}_log_var"] = pred_BO[:, len(names) + index]
        if task in batch:
            true_BO = batch[task].float().reshape(len(pred_BO), -1)
            rows |= {f"true_{name}": true_BO[:, index] for index, name in enumerate(names)}
            if task == "angle":
                rows["opening_angle"] = opening_angle(pred_BO[:, :2], true_BO)
    if "xyzVTX" in batch:
        rows |= {f"{axis}_vtx": batch["xyzVTX"][:, index] for index, axis in enumerate("xyz")}
    return rows


def opening_angle(some_B2: Tensor, others_B2: Tensor) -> Tensor:
    """Degrees between directions that are given as theta and phi in degrees."""
    some_B3, others_B3 = _direction(some_B2), _direction(others_B2)
    across_B = torch.linalg.cross(some_B3, others_B3).norm(dim=-1)
    # The arc cosine has no digits left where the directions agree.
    return torch.rad2deg(torch.atan2(across_B, (some_B3 * others_B3).sum(-1)))


def reconstruction_rows(
    pred_BSC: Tensor,
    inputs: Inputs,
    hidden_BS: Tensor,
    batch: Mapping[str, Tensor],
    normalization: NormalizationSettings,
    channels: Sequence[str],
) -> dict[str, Tensor]:
    """What an autoencoder says about every sensor of each event."""
    rows = {"run": batch["run"], "event": batch["event"], "mask": hidden_BS.to(torch.uint8)}
    for channel in ("npho", "time"):
        truth_BS, there_BS = measured(inputs, normalization, channel)
        rows[f"truth_{channel}"] = truth_BS
        rows[f"masked_{channel}"] = torch.where(hidden_BS, NOT_AVAILABLE, truth_BS)
        if channel in channels:
            pred_BS = physical(pred_BSC[..., channels.index(channel)], normalization, channel)
            rows[f"pred_{channel}"] = pred_BS
            rows[f"err_{channel}"] = torch.where(there_BS, pred_BS - truth_BS, NOT_AVAILABLE)
    return rows


def inpainting_rows(
    pred_BSC: Tensor,
    inputs: Inputs,
    hidden_BS: Tensor,
    batch: Mapping[str, Tensor],
    normalization: NormalizationSettings,
    channels: Sequence[str],
) -> dict[str, Tensor]:
    """What an inpainter says about the hidden sensors, one row each; waits for the device."""
    event_R, sensor_R = hidden_BS.nonzero(as_tuple=True)
    # A copy: the table is shared and must not be written.
    face_S = torch.tensor(face_of_sensor(), device=hidden_BS.device)
    rows = {
        "event_idx": event_R,  # in the batch; the writer knows where the batch is
        "run_number": batch["run"][event_R],
        "event_number": batch["event"][event_R],
        "sensor_id": sensor_R,
        "face": face_S[sensor_R],
    }
    for channel in channels:
        truth_BS, there_BS = measured(inputs, normalization, channel)
        truth_R, there_R = truth_BS[event_R, sensor_R], there_BS[event_R, sensor_R]
        scaled_R = pred_BSC[..., channels.index(channel)][event_R, sensor_R]
        pred_R = physical(scaled_R, normalization, channel)
        rows[f"truth_{channel}"] = truth_R
        rows[f"pred_{channel}"] = pred_R
        rows[f"error_{channel}"] = torch.where(there_R, pred_R - truth_R, NOT_AVAILABLE)
    return rows


def measured(
    inputs: Inputs, normalization: NormalizationSettings, channel: str
) -> tuple[Tensor, Tensor]:
    """Photons or seconds, 1e10 where there is no value, and where there is one."""
    if channel == "npho":
        there_BS, values_BS = inputs.npho_valid_BS, inputs.npho_BS
    else:
        there_BS = inputs.time_valid_BS
        values_BS = time_from_scale(inputs.x_BSC[..., 1], normalization)
    return torch.where(there_BS, values_BS, NOT_AVAILABLE), there_BS


def physical(scaled: Tensor, normalization: NormalizationSettings, channel: str) -> Tensor:
    """Photons or seconds from what a model says; a root below zero is no photon, not some."""
    scaled = scaled.float()
    if channel == "time":
        return time_from_scale(scaled, normalization)
    if normalization.npho_scheme in ("sqrt", "anscombe"):
        scaled = scaled.clamp(min=0.0)
    return npho_from_scale(scaled, normalization)


def _direction(angles_B2: Tensor) -> Tensor:
    theta_B, phi_B = torch.deg2rad(angles_B2.double()).unbind(-1)
    across_B = theta_B.sin()
    return torch.stack((-across_B * phi_B.cos(), across_B * phi_B.sin(), theta_B.cos()), dim=-1)
