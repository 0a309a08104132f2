"""Learning curves of a run, read from its record through public names."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
from matplotlib.ticker import LogFormatter

from ...curves import read_curves
from ...drawing import BLUE, COLOURS, GREY, Drawn, label, line
from .drawing import finite, paper

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


def learning_curves(run_folder: str | os.PathLike[str]) -> list[Drawn]:
    """Losses and resolutions over the steps of a run; no picture of a run that noted nothing."""
    curves = read_curves(run_folder)
    validation = curves.validation
    if not any(curves):
        return []
    measures = {
        what: [name for name in names if name in validation] for what, names in _PANELS.items()
    }
    measures = {what: names for what, names in measures.items() if names}
    columns = min(1 + len(measures), 3)
    figure, panels = paper(-(-(1 + len(measures)) // columns), columns)
    for unused in panels[1 + len(measures) :]:
        unused.set_axis_off()
    first, *others = panels[: 1 + len(measures)]
    line(first, curves.training.get("loss"), "training", GREY)
    line(first, validation.get("loss"), "validation", BLUE)
    label(first, "optimizer step", "loss")
    for panel, (what, names) in zip(others, measures.items(), strict=True):
        for name, colour in zip(names, COLOURS, strict=False):
            line(panel, validation[name], name, colour)
        label(panel, "optimizer step", what, "validation")
    for panel in (first, *others):
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize=7, frameon=False)
        heights = [finite(np.asarray(line.get_ydata())) for line in panel.lines]
        if heights and np.concatenate(heights).min(initial=np.inf) > 0:
            panel.set_yscale("log")
            for axis in (panel.yaxis.set_major_formatter, panel.yaxis.set_minor_formatter):
                axis(LogFormatter(minor_thresholds=(2, 0.5)))
            panel.tick_params(which="minor", labelsize=8)
    loss = validation.get("loss")
    known = finite(np.array(loss.values)) if loss else np.zeros(0)
    caption = (
        "Both losses should fall together; a validation loss that turns upwards is overfitting."
    )
    if len(known):
        caption += f" The lowest validation loss was {known.min():.4g}."
    return [Drawn("learning", "Learning curves", caption, figure)]
