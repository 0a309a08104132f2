"""The picture of learning: losses and measures over the steps of a run."""

from __future__ import annotations

import math

from ...curves import Curves
from ...drawing import BLUE, GREEN, GREY, RED, Drawn, line, paper

__all__ = ["of"]

_MEASURES = {
    "cosine": ("cosine to the target", BLUE),
    "fvu": ("variance left (FVU)", RED),
    "r1": ("nearest is right (R@1)", GREEN),
}


def of(curves: Curves) -> list[Drawn]:
    """The learning curves; no picture of a run that noted nothing."""
    if not curves.training and not curves.validation:
        return []
    figure, (left, right) = paper(1, 1)
    line(left, curves.training.get("loss"), "training (mean of 50 steps)", GREY)
    line(left, curves.validation.get("loss"), "validation", BLUE)
    left.set_title("Loss", fontsize=10)
    for name, (label, colour) in _MEASURES.items():
        line(right, curves.validation.get(name), label, colour)
    line(right, curves.training.get("cosine"), "cosine in training", GREY)
    right.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
    right.set_title("Measures on held-out pairs", fontsize=10)
    for panel in (left, right):
        panel.set_xlabel("optimizer step", fontsize=9)
        panel.set_ylim(bottom=min(0.0, panel.get_ylim()[0]))
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize=8, frameon=False)
    return [Drawn("learning", "Learning curves", _caption(curves), figure)]


def _caption(curves: Curves) -> str:
    reported = ["The loss should fall, the cosine rise towards 1, the variance left fall below 1"]
    fvu = curves.validation.get("fvu")
    finite = [value for value in fvu.values if math.isfinite(value)] if fvu else []
    if finite:
        reported.append(
            f"the lowest variance left was {min(finite):.3g} (1: no better than the mean)"
        )
    return "; ".join(reported) + "."
