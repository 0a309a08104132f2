"""Trained weights, taken from a run: for evaluation, export and fine-tuning."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..checkpoint.file import load
from ..checkpoint.record import is_single
from ..checkpoint.store import FOLDER, CheckpointStore
from ..errors import CheckpointError, RunFolderError
from ..run import Run
from .loop.validation_schedule import BEST

_NAMED = 4  # tensors of each kind that do not fit


def read_weights(
    source: str | os.PathLike[str],
    *,
    best: bool = True,
    averaged: bool | None = None,
) -> tuple[dict[str, Tensor], Path]:
    """The weights of a run by name, and the checkpoint they came from.

    Args:
        source: a run folder, or one checkpoint.
        best: of a run, the best by validation; the newest where there was none, or if False.
        averaged: the running average instead of the weights; where there is one by default.
    """
    entry = _entry(Path(source), best=best)
    tree, _ = load(entry)
    weights: Mapping[str, Tensor | None] = tree["models"]["model"]
    average: Mapping[str, Any] | None = tree["ema"].get("ema")
    if averaged and average is None:
        raise CheckpointError(f"{entry.name} holds no average; train with train.average.decay")
    if average is not None and averaged is not False:
        weights = {**weights, **average["weights"], **average["buffers"]}
    # A buffer that is registered without a tensor is saved, too: as nothing.
    return {name: value for name, value in weights.items() if value is not None}, entry


def load_weights(
    model: nn.Module,
    source: str | os.PathLike[str],
    *,
    best: bool = True,
    averaged: bool | None = None,
    part: str = "",
) -> Path:
    """Put the weights of a run into a model; returns the checkpoint they came from.

    Args:
        model: of the same shape as the one that was trained.
        source: see ``read_weights``, as the other arguments.
        best: see there.
        averaged: see there.
        part: only what has a name that begins so, such as "encoder."; the rest stays as it is.
    """
    weights, entry = read_weights(source, best=best, averaged=averaged)
    every = model.state_dict()
    own = {name: value for name, value in every.items() if name.startswith(part)}
    # A checkpoint also holds buffers that are not persistent, and what is tied only once.
    derived = {name for name, _ in model.named_buffers(remove_duplicate=False)} - every.keys()
    weights = {n: value for n, value in weights.items() if n.startswith(part) and n not in derived}
    saved = {own[name].data_ptr(): value for name, value in weights.items() if name in own}
    for name in own.keys() - weights.keys():
        if own[name].data_ptr() in saved:
            weights[name] = saved[own[name].data_ptr()]
    trouble = {
        "missing": [name for name in own if name not in weights],
        "unexpected": [name for name in weights if name not in own],
        "shape": [
            f"{name} {tuple(weights[name].shape)} instead of {tuple(value.shape)}"
            for name, value in own.items()
            if name in weights and weights[name].shape != value.shape
        ],
    }
    reported = [
        f"{what}: {', '.join(names[:_NAMED])}{' …' * (len(names) > _NAMED)}"
        for what, names in trouble.items()
        if names
    ]
    if reported:
        raise CheckpointError(
            f"the weights of {entry} do not fit; {'; '.join(reported)}; "
            "build the model with the settings of the run"
        )
    with torch.no_grad():
        model.load_state_dict(every | weights)
    return entry


def _entry(source: Path, *, best: bool) -> Path:
    if is_single(source):
        return source
    folder = source / FOLDER if (source / FOLDER).is_dir() else source
    store = CheckpointStore(folder)
    found = None
    if best:
        try:
            mode = Run.open(source).meta["settings"]["checkpoint"]["mode"]
        except (RunFolderError, KeyError):  # checkpoints by themselves
            mode = "min"
        found = store.best(BEST, mode)
    found = found or store.latest()
    if found is None:
        raise CheckpointError(f"{folder} holds no good checkpoint; see: holdfast checkpoint ls")
    return found.path
