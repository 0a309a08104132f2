"""Learning curves of a run, read from its record through public names."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast import Run

from .drawing import BLUE, COLOURS, GREY, Drawn, paper

__all__ = ["learning_curves", "read_curves"]

Curve = dict[int, float]
"""A number by step; NaN where it was no number."""

_KINDS = {"numbers": "training", "validation": "validation"}
# What is drawn beside the losses, by the unit of the axis; the first panels that have a curve.
_PANELS: Mapping[str, tuple[str, ...]] = {
    "68 % of |residual| [cm]": (
        "uvw_u_res_68pct", "uvw_v_res_68pct", "uvw_w_res_68pct", "uvw_dist_68pct",
    ),
    "relative energy resolution": ("energy_rel_res_68pct", "energy_rel_core_sigma"),
    "angle [deg]": ("angle_resolution_68pct", "theta_rms", "phi_rms"),
    "time [ps]": ("timing_res_68pct",),
    "error on hidden sensors, network's scale": ("mae_npho", "rmse_npho", "mae_time", "rmse_time"),
}  # fmt: skip


def read_curves(run_folder: str | os.PathLike[str]) -> dict[str, dict[str, Curve]]:
    """Curves of training and validation by name; of a step taken twice, the later numbers."""
    found: dict[str, dict[str, Curve]] = {where: {} for where in _KINDS.values()}
    run = Run.open(run_folder)
    for lane in run.lanes():
        path = run.stream_path("events", lane)
        if not path.is_file():
            continue
        with path.open(encoding="utf-8", errors="replace") as lines:
            for where, step, numbers in _notes(lines):
                for name, value in numbers.items():
                    found[where].setdefault(name, {})[step] = _number(value)
    return found


def learning_curves(run_folder: str | os.PathLike[str]) -> list[Drawn]:
    """Losses and resolutions over the steps of a run; no picture of a run that noted nothing."""
    curves = read_curves(run_folder)
    validation = curves["validation"]
    if not any(curves.values()):
        return []
    measures = {
        label: [name for name in names if name in validation] for label, names in _PANELS.items()
    }
    measures = {label: names for label, names in measures.items() if names}
    figure, panels = paper(1, 1 + len(measures), size=(4.6, 3.6))
    first, *others = panels
    for where, colour in (("training", GREY), ("validation", BLUE)):
        _line(first, curves[where].get("loss", {}), where, colour)
    first.set_ylabel("loss")
    for panel, (label, names) in zip(others, measures.items(), strict=True):
        for name, colour in zip(names, COLOURS, strict=False):
            _line(panel, validation[name], name, colour)
        panel.set_ylabel(label)
        panel.set_title("validation", fontsize=10)
    for panel in panels:
        panel.set_xlabel("optimizer step")
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize=7, frameon=False)
        if all(value > 0 for line in panel.lines for value in line.get_ydata() if value == value):  # type: ignore[attr-defined]
            panel.set_yscale("log")
    finite = [value for value in validation.get("loss", {}).values() if math.isfinite(value)]
    caption = (
        "Both losses should fall together; a validation loss that turns upwards is overfitting."
    )
    if finite:
        caption += f" The lowest validation loss was {min(finite):.4g}."
    return [Drawn("learning", "Learning curves", caption, figure)]


def _notes(lines: Iterable[str]) -> Iterable[tuple[str, int, Mapping[str, Any]]]:
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue  # the last line of a run that was killed may be cut
        if not isinstance(event, dict) or event.get("rank") != 0:
            continue
        kind, step, data = (event.get(key) for key in ("kind", "step", "data"))
        if kind in _KINDS and isinstance(step, int) and isinstance(data, dict):
            yield _KINDS[kind], step, data


def _number(value: Any) -> float:
    """What is not finite is written as a word."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    return float(value)


def _line(panel: Any, curve: Curve, label: str, colour: str) -> None:
    if curve:
        steps = sorted(curve)
        panel.plot(steps, [curve[step] for step in steps], color=colour, label=label, linewidth=1.5,
                   marker="o" if len(steps) <= 40 else None, markersize=3.5)  # fmt: skip
