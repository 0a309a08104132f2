"""Pictures of a run, for people: what was learned, and what the flows do in the lattice.

    draw(model, batch, "runs/mine")

They are PNG files in ``RUN/pictures``, with a list that the report shows them by.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from holdfast import HoldfastError

from ...curves import read_curves
from ..model.energy_flow import EnergyFlow
from .trajectories import record

__all__ = ["FOLDER", "LIST", "draw"]

FOLDER, LIST = "pictures", "pictures.json"

_DOTS_PER_INCH = 110


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
    if importlib.util.find_spec("matplotlib") is None:
        raise HoldfastError(
            "no pictures: matplotlib is not installed; pip install 'holdfast-models[plots]', "
            "or set pictures=false"
        )
    from . import flow_figures, learning_figure

    drawn = [
        *learning_figure.of(read_curves(run_folder)),
        *flow_figures.of(record(model, batch[0], step=step)),
    ]
    folder = Path(run_folder) / FOLDER
    folder.mkdir(exist_ok=True)
    files: list[Path] = []
    listed: list[dict[str, str]] = []
    for one in drawn:
        path = folder / f"{one.name}.png"
        # No name of a program inside: the same run makes the same bytes.
        one.figure.savefig(path, dpi=_DOTS_PER_INCH, metadata={"Software": None})
        files.append(path)
        listed.append({"file": path.name, "title": one.title, "caption": one.caption})
    # Last: the list never names a picture that is not there yet.
    (folder / LIST).write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    return files
