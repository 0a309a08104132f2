"""Pictures of a run as a whole: learning beside what needs no network, and scores of tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ...curves import Curves
from ...drawing import BLUE, GREEN, GREY, ORANGE, RED, label, line, paper


def learning(curves: Curves, baselines: Mapping[str, float], *, task: str = "llm") -> Figure:
    """Loss and score over the steps, with lines for the predictors that a network has to beat."""
    score = "r2" if task == "robotics" else "accuracy"
    figure, (left, right) = paper(1.3, 1)
    line(left, curves.training.get("loss"), "training", GREY)
    line(left, curves.validation.get("loss"), "validation", BLUE)
    line(right, curves.training.get(score), "training", GREY)
    line(right, curves.validation.get(score), "validation", GREEN)
    levels = {
        "uniform": (left, RED, "uniform, ln V"),
        "unigram": (left, ORANGE, "unigram entropy"),
        "most_frequent": (right, ORANGE, "most frequent token"),
        "linear": (left if score == "r2" else right, ORANGE, "linear model"),
        "linear_r2": (right, ORANGE, "linear model"),
    }
    for name in (name for name in levels if name in baselines):
        panel, colour, words = levels[name]
        panel.axhline(
            baselines[name], color=colour, ls="--", label=f"{words}: {baselines[name]:.3g}"
        )
    label(left, "optimizer step", title="Loss (nats per token)" if task == "llm" else "Loss")
    label(right, "optimizer step", title="R², 1 is perfect" if score == "r2" else "Accuracy")
    for panel in (left, right):
        panel.set_ylim(bottom=min(0.0, panel.get_ylim()[0]))
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize=8, frameon=False)
    return figure


def task_scores(scores: Mapping[str, Any]) -> Figure:
    """The matrix of a continual run: the score on every task after every task, with numbers."""
    names = list(scores["tasks"])
    rows = [scores["untrained"], *scores["after"]]
    value_IJ = np.array([[np.nan if v is None else v for v in row] for row in rows], dtype=float)
    figure, (panel,) = paper(1, height=max(2.8, 1.4 + 0.5 * len(rows)))
    known = value_IJ[np.isfinite(value_IJ)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 1.0)
    image = panel.imshow(value_IJ, cmap="Blues", vmin=low, vmax=high, aspect="auto")
    figure.colorbar(image, ax=panel, pad=0.01).set_label("score, higher is better", fontsize=8)
    panel.spines[:].set_visible(False)
    panel.set_xticks(range(len(names)), names)
    panel.set_yticks(range(len(rows)), ["untrained", *(f"after {name}" for name in names)])
    label(panel, "score on")
    for (i, j), value in np.ndenumerate(value_IJ):
        dark = value > (low + high) / 2
        panel.text(j, i, "-" if np.isnan(value) else f"{value:.3f}", ha="center", va="center",
                   fontsize=9, color="white" if dark else "black",
                   weight="bold" if i == j + 1 else "normal")  # fmt: skip
    return figure
