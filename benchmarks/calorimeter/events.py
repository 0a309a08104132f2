"""Generated events in memory, and tasks on them."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from holdfast.training import Place, Task, resolve
from holdfast_models.xec import recipes
from holdfast_models.xec.data.batches import inputs_of, packed
from holdfast_models.xec.data.caching import CachedEvents
from holdfast_models.xec.data.normalization import NOT_AVAILABLE, normalise, time_from_scale
from holdfast_models.xec.data.synthetic import generate
from holdfast_models.xec.recipes import recipe_of
from holdfast_models.xec.settings import NormalizationSettings, SynthSettings

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
BLOCK = 2048
_TRUTHS = ("energy", "timing", "uvwFI", "angle", "run", "event")


def log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def make_events(
    count: int, first: int, normalization: NormalizationSettings
) -> tuple[dict[str, Tensor], float]:
    """Events of a set, packed, on the host; and how many a second were made."""
    held: dict[str, list[Tensor]] = {}
    seconds = 0.0
    for at in range(first, first + count, BLOCK):
        began = time.perf_counter()
        events = generate(SynthSettings(), min(BLOCK, first + count - at), first=at, device=DEVICE)
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        seconds += time.perf_counter() - began
        inputs = normalise(events["npho"], events["time"], normalization)
        for name, value in (packed(inputs) | {n: events[n] for n in _TRUTHS}).items():
            held.setdefault(name, []).append(value.cpu())
    return {name: torch.cat(parts) for name, parts in held.items()}, count / seconds


def on_device(events: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.to(DEVICE) for name, value in events.items()}


def settings_of(kind: str, size: str, overrides: list[str]) -> Any:
    preset = "small" if size == "small" else "synthetic"
    base = ["train.holdfast.run.quiet=true", "output.artifacts=false", "output.onnx=null"]
    if kind == "inp":
        base += ["model.freeze_encoder=false"]
    return resolve(recipe_of(kind), preset=preset, overrides=[*base, *overrides], platform="none")


def task_of(settings: Any, train: Any, validation: Any = None) -> Task:
    """The task of a run; packed events are read as the cache gives them."""
    train, validation = (
        CachedEvents(some, None) if isinstance(some, dict) else some for some in (train, validation)
    )
    torch.manual_seed(settings.train.seed.seed)
    return recipes.task_of(settings, Place(DEVICE), train, validation)


def raw(
    events: Mapping[str, Tensor], normalization: NormalizationSettings, most: int | None = None
) -> dict[str, Tensor]:
    """Packed events as files hold them: photons and seconds, 1e10 where there are none."""
    some = {name: value[:most] for name, value in events.items()}
    inputs = inputs_of(some, normalization)
    seconds_BS = time_from_scale(inputs.x_BSC[..., 1], normalization)
    return {
        **{name: some[name] for name in _TRUTHS},
        "npho": torch.where(inputs.npho_valid_BS, inputs.npho_BS, NOT_AVAILABLE),
        "time": torch.where(inputs.time_valid_BS, seconds_BS, NOT_AVAILABLE),
    }
