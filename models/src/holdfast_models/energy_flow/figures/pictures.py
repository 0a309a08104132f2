"""Pictures of a run, for people: what was learned, and what the flows do in the lattice.

    draw(model, batch, "runs/mine")

They are PNG files in ``RUN/pictures``, with a list that the report shows them by.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from ...curves import read_curves
from ...pictures import require_matplotlib, write_pictures
from ..model.energy_flow import EnergyFlow
from .trajectories import record

__all__ = ["draw"]


def draw(
    model: EnergyFlow,
    batch: Sequence[Tensor],
    run_folder: str | os.PathLike[str],
    *,
    step: int = 0,
) -> list[Path]:
    """Draw all there is to draw into ``RUN/pictures``; the files.

    Args:
        model: as it is now; looked at without noise and dropout.
        batch: of the recipe's kind, embeddings first; the first few samples are drawn.
        run_folder: of the run, whose record holds the learning curves.
        step: of the optimizer, which sets how far flows move.

    Raises:
        HoldfastError: matplotlib is not installed, or this is no run folder.
    """
    require_matplotlib()
    from . import flow_figures, learning_figure

    drawn = [
        *learning_figure.of(read_curves(run_folder)),
        *flow_figures.of(record(model, batch[0], step=step)),
    ]
    return write_pictures(run_folder, drawn)
