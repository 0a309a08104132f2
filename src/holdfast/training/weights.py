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
) -> Path:
    """Put the weights of a run into a model; returns the checkpoint they came from.

    Args:
        model: of the same shape as the one that was trained.
        source: see ``read_weights``, as the other arguments.
        best: see there.
        averaged: see there.
    """
    weights, entry = read_weights(source, best=best, averaged=averaged)
    mine = model.state_dict()
    # A checkpoint also holds buffers that are not persistent, and what is tied only once.
    derived = {name for name, _ in model.named_buffers(remove_duplicate=False)} - mine.keys()
    weights = {name: value for name, value in weights.items() if name not in derived}
    saved = {mine[name].data_ptr(): value for name, value in weights.items() if name in mine}
    for name in mine.keys() - weights.keys():
        if mine[name].data_ptr() in saved:
            weights[name] = saved[mine[name].data_ptr()]
    for name in [*mine, *weights]:
        if name not in weights or name not in mine:
            where = "model" if name in weights else entry.name
            raise CheckpointError(
                f"{where} has no {name}; build the model with the settings of the run ({source})"
            )
        if mine[name].shape != weights[name].shape:
            raise CheckpointError(
                f"{name} has the shape {tuple(weights[name].shape)} in {entry.name} and "
                f"{tuple(mine[name].shape)} in the model; build it with the settings of the run"
            )
    with torch.no_grad():
        model.load_state_dict(weights)
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
