"""In which numbers a model computes, and why in these.

>>> precision = Precision("auto", torch.device("cpu"))
>>> precision.name, precision.why
('fp32', 'fp32: the CPU gains little from fewer bits')
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Literal

import torch

from .. import apply_scaler_policy
from ..config import ScalerSettings
from ..errors import SettingsError

PrecisionName = Literal["auto", "fp32", "bf16", "fp16"]

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_AMPERE = (8, 0)  # the first generation of NVIDIA GPUs that computes in bf16


class Precision:
    """The precision of a run, decided once.

    Args:
        name: what is asked for; ``auto`` takes what the device is fast and safe with.
        device: where the model is trained.
        scaler: the numbers of the loss scale, which only fp16 needs.
    """

    def __init__(
        self,
        name: PrecisionName,
        device: torch.device,
        scaler: ScalerSettings | None = None,
    ) -> None:
        chosen, reason = _chosen(device) if name == "auto" else (name, _asked(name, device))
        self.name: Literal["fp32", "bf16", "fp16"] = chosen
        self.why = f"{chosen}: {reason}"
        self.scaler = apply_scaler_policy(device.type, scaler) if chosen == "fp16" else None
        self._device = device.type

    @property
    def gathered(self) -> torch.dtype | None:
        """In which type ranks gather the weights they share; None: as they are."""
        return _DTYPES.get(self.name)

    def autocast(self) -> AbstractContextManager[object]:
        """Around the forward pass and the loss; a new one every time, nothing for fp32."""
        if self.name == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self._device, _DTYPES[self.name])


def _chosen(device: torch.device) -> tuple[Literal["fp32", "bf16", "fp16"], str]:
    if device.type == "cuda":
        generation = _generation(device)
        if generation is None or generation >= _AMPERE:
            return "bf16", "the GPU has it, and it needs no loss scale"
        return "fp16", f"the GPU ({_dotted(generation)}) is older than bf16, which came with 8.0"
    if device.type == "cpu":
        return "fp32", "the CPU gains little from fewer bits"
    return "fp32", f"nothing else is tried on {device.type}"


def _asked(name: str, device: torch.device) -> str:
    if name == "fp16" and device.type != "cuda":
        raise SettingsError(
            f"precision 'fp16' needs a CUDA device, and the run is on {device.type}; set "
            "precision to bf16, fp32 or auto"
        )
    if name == "bf16" and device.type == "cuda":
        generation = _generation(device)
        if generation is not None and generation < _AMPERE:
            return (
                f"asked for; the GPU ({_dotted(generation)}) has no units for it and may be "
                "slow, fp16 is not"
            )
    return "asked for"


def _generation(device: torch.device) -> tuple[int, int] | None:
    """The compute capability of an NVIDIA GPU; None for those of AMD, which all have bf16."""
    return None if torch.version.hip else torch.cuda.get_device_capability(device)


def _dotted(generation: tuple[int, int]) -> str:
    return "compute capability {}.{}".format(*generation)
