"""Weights of events: rare ones count more, by histograms of their truth.

An event weighs 1 / (events in its bin), normalised to a mean of 1; of several quantities the
weights are multiplied. They are kept on disk for the next run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast import HoldfastError
from holdfast.training import MappedTensors, write_tensors

from ..settings import HistogramSettings, ReweightingSettings
from .made_once import made_once, name_of, stamps
from .root_files import RootEvents

_EPSILON = 1e-6
_LARGEST = 9e9  # above: not available


def event_weights(
    files: Sequence[tuple[RootEvents, Tensor | None]], settings: ReweightingSettings, cache_dir: str
) -> list[Tensor]:
    """Weights of the events of each file.

    Args:
        files: each with the entries that are used, None for all of them.
        settings: which quantities, how finely.
        cache_dir: the folder that weights are kept in.
    """
    active = settings.active()
    decides = (
        stamps(root.path for root, _ in files),
        [[root.tree_name, *(root.branches[name] for name in active)] for root, _ in files],
        [None if kept is None else (len(kept), int(kept.sum())) for _, kept in files],
        {name: dataclasses.asdict(one) for name, one in active.items()},
    )

    def make(part: Path) -> None:
        weight_N = np.ones(sum(len(r) if kept is None else len(kept) for r, kept in files))
        for name, histogram in active.items():
            weight_N *= _rarity(_truth(files, name), _bins(name, histogram))
        if not weight_N.sum() > 0:
            raise HoldfastError(
                f"reweighting.{', '.join(active)}: no event of {files[0][0].path} has a true value"
            )
        write_tensors(part, {"weight": torch.from_numpy(weight_N / weight_N.mean()).float()})

    folder = made_once(Path(cache_dir).expanduser() / name_of("weights", *decides), make)
    weights = MappedTensors(folder).mapped("weight").clone()
    return list(weights.split([len(r) if kept is None else len(kept) for r, kept in files]))


def _truth(files: Sequence[tuple[RootEvents, Tensor | None]], name: str) -> NDArray[np.float64]:
    """True values of all events, one row each."""
    found = []
    for root, kept in files:
        rows = root.read(0, len(root), [name])[name]
        found.append(rows if kept is None else rows[kept])
    values = torch.cat(found).double()
    return values.reshape(len(values), -1).numpy()


def _bins(name: str, histogram: HistogramSettings) -> tuple[int, ...]:
    across, along = histogram.nbins_2d
    return {"angle": (across, along), "uvwFI": (across, along, along)}.get(name, (histogram.nbins,))


def _rarity(values_ND: NDArray[np.float64], bins: tuple[int, ...]) -> NDArray[np.float64]:
    """1 / (events in the bin of each) with a mean of 1; 0 for events without a value."""
    known_N = (np.isfinite(values_ND) & (np.abs(values_ND) < _LARGEST)).all(1)
    weight_N = np.zeros(len(values_ND))
    if not known_N.any():
        return weight_N
    known_KD = values_ND[known_N]
    low_D, high_D = known_KD.min(0), known_KD.max(0)
    width_D = np.where(high_D > low_D, high_D - low_D, 1.0)
    cell_KD = ((known_KD - low_D) / width_D * bins).astype(np.int64)
    cell_KD = np.minimum(cell_KD, np.array(bins) - 1)  # the largest value lies in the last bin
    cell_K = np.ravel_multi_index(tuple(cell_KD.T), bins)
    weight_N[known_N] = 1 / (np.bincount(cell_K)[cell_K] + _EPSILON)
    return weight_N / weight_N[known_N].mean()
