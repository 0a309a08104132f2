"""Pictures of a run, for people: learning, spikes, time constants, gates, fast weights, tasks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ...curves import read_curves
from ...pictures import require_matplotlib, write_pictures
from ..model.model import LiquidNet
from ..run_settings import LiquidSettings
from .look import Seen, look


def draw(
    net: LiquidNet,
    batch: Mapping[str, Tensor],
    run_folder: str | os.PathLike[str],
    *,
    settings: LiquidSettings,
) -> None:
    """Draw the network, on the first sequence of a batch, and the record into ``RUN/pictures``."""
    require_matplotlib()
    write_pictures(run_folder, _drawn(Path(run_folder), look(net, batch), settings.task))


def _drawn(folder: Path, seen: Seen, task: str) -> Iterator[Any]:
    from ...drawing import Drawn
    from . import inside_figures as inside
    from . import run_figures

    curves, scores = read_curves(folder), _table(folder, "continual")
    if curves.training or curves.validation:
        caption = "The loss should fall below every dashed line, which needs no network."
        caption += " Validation is on all tasks, also those to come." if scores else ""
        figure = run_figures.learning(curves, _table(folder, "baselines"), task=task)
        yield Drawn("learning", "Learning curves", caption, figure)
    for number in sorted({0, len(seen.train_STK) - 1}):
        train_STK = seen.train_STK[number]
        silent = np.mean(train_STK.mean((0, 1)) == 0)
        caption = f"Spikes for one sequence; {silent:.0%} of the units are silent in it."
        title, figure = f"Spikes of block {number}", inside.spike_raster(train_STK)
        yield Drawn(f"spikes_{number}", title, caption, figure)
    every = np.concatenate([tau.ravel() for tau in seen.tau_TU])
    caption = (
        f"Half of the time constants are below {np.median(every):.3g} steps; "
        f"{np.mean(every < 1 / 20):.1%} are below 1/20 of a step and keep nothing."
    )
    figure = inside.time_constants(seen.tau_TU)
    yield Drawn("time_constants", "Liquid time constants", caption, figure)
    if seen.opening_TG:
        caption = f"On average {np.mean(seen.opening_TG):.0%} of the output is liquid, not Mamba."
        yield Drawn("gates", "Gates", caption, inside.gate_openings(seen.opening_TG))
    if seen.fast_UK:
        caption = f"Fast weights started at 0; their norm is {np.linalg.norm(seen.fast_UK):.3g}."
        figure = inside.fast_weights(seen.fast_UK, curves.training)
        yield Drawn("fast_weights", "Fast weights", caption, figure)
    if scores:
        reported = [
            f"{name} {value:+.3f}" for name, value in scores.items() if type(value) is float
        ]
        caption = f"Bold: right after its own training; {', '.join(reported).replace('_', ' ')}."
        yield Drawn("tasks", "Scores of all tasks", caption, run_figures.task_scores(scores))


def _table(folder: Path, name: str) -> dict[str, Any]:
    """A table that the run wrote; empty where it wrote none."""
    path = folder / "tables" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
