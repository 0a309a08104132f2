"""The forms a batch of events comes in, and the model's inputs out of each of them.

* raw: ``npho`` and ``time`` as in the file, to be normalised where the model is;
* normalised: ``x``, ``npho_valid``, ``time_valid`` and ``npho``, 0 where it is not valid;
* packed: ``values`` (float16, normalised) and ``masks`` (bits), as a cache holds events.

Shapes: B events, S sensors, C channels.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..settings import NormalizationSettings
from .normalization import Inputs, marked, normalise, npho_from_scale

NORMALISED = ("x", "npho_valid", "time_valid", "npho")
"""Names of a normalised batch, in the order of ``Inputs``."""

_NPHO, _TIME = 1, 2  # bits of masks
_HALF_MOST = 65504.0  # float16 ends here


def inputs_of(batch: Mapping[str, Tensor], settings: NormalizationSettings) -> Inputs:
    """The inputs of a batch in any of its forms."""
    if "x" in batch:
        return Inputs(*(batch[name] for name in NORMALISED))
    if "values" in batch:
        return unpacked(batch["values"], batch["masks"], settings)
    return normalise(batch["npho"], batch["time"], settings)


def packed(inputs: Inputs) -> dict[str, Tensor]:
    """Values in half precision and two masks in one byte: 24 kB an event instead of 38 kB raw."""
    masks_BS = inputs.npho_valid_BS * _NPHO + inputs.time_valid_BS * _TIME
    values_BSC = inputs.x_BSC.clamp(-_HALF_MOST, _HALF_MOST).half()
    return {"values": values_BSC, "masks": masks_BS.to(torch.uint8)}


def unpacked(values_BSC: Tensor, masks_BS: Tensor, settings: NormalizationSettings) -> Inputs:
    """What was packed, in float32; photon counts come from the inverse of the normalisation."""
    npho_valid_BS, time_valid_BS = (masks_BS & _NPHO) > 0, (masks_BS & _TIME) > 0
    npho_BS, time_BS = values_BSC.float().unbind(-1)
    measured_BS = torch.where(npho_valid_BS, npho_from_scale(npho_BS, settings), 0.0)
    return marked(npho_BS, time_BS, npho_valid_BS, time_valid_BS, measured_BS, settings)
