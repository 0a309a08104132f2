"""What all pictures have in common: paper, colours, and the words that go with a picture.

Imports matplotlib, which is optional: call ``pictures.require_matplotlib`` before.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from .curves import Curve

__all__ = [
    "BLUE",
    "COLOURS",
    "GREEN",
    "GREY",
    "ORANGE",
    "RED",
    "Drawn",
    "label",
    "line",
    "paper",
    "sheet",
    "symmetric",
    "whole_numbers",
]

# Also told apart by those who do not see red and green as different.
BLUE, ORANGE, GREEN, RED, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#8c959f"
COLOURS = (BLUE, RED, GREEN, ORANGE, "#cc79a7", "#56b4e9", "#000000")

_WIDTH, _HEIGHT = 9.6, 3.7


class Drawn(NamedTuple):
    """A picture and what is said about it.

    Args:
        name: of the file, without ending; may begin with a folder.
        title: a few words.
        caption: one sentence: what is to be seen.
        figure: drawn, not yet written.
    """

    name: str
    title: str
    caption: str
    figure: Figure


def sheet(
    inches: tuple[float, float], rows: int = 1, columns: int = 1, **grid: Any
) -> tuple[Figure, list[Axes]]:
    """A figure without any window, and its panels row by row."""
    # Not through pyplot: it keeps figures, and looks for a screen.
    figure = Figure(figsize=inches, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels: Any = figure.subplots(rows, columns, squeeze=False, **grid)
    return figure, list(panels.ravel())


def paper(*widths: float, height: float = _HEIGHT) -> tuple[Figure, list[Axes]]:
    """A sheet with panels of these relative widths side by side."""
    figure, panels = sheet((_WIDTH, height), 1, len(widths), width_ratios=widths)
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.tick_params(labelsize=8)
    return figure, panels


def label(panel: Axes, x: str, y: str = "", title: str = "") -> None:
    """Name the axes and the panel."""
    panel.set_xlabel(x, fontsize=9)
    panel.set_ylabel(y, fontsize=9)
    panel.set_title(title, fontsize=10)


def whole_numbers(panel: Axes) -> None:
    """Cells and steps are counted: no half ones at the axes."""
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(MaxNLocator(6, integer=True))


def symmetric(*values: NDArray[np.floating[Any]]) -> float:
    """How far a colour scale around zero has to reach; never nothing, whatever is not finite."""
    most = 0.0
    for some in values:
        finite = np.abs(some[np.isfinite(some)])
        most = max(most, float(finite.max(initial=0.0)))
    return most or 1.0


def line(panel: Axes, curve: Curve | None, label: str, colour: str) -> None:
    """Plot a curve over steps; say so where none of its values is finite."""
    if curve is None:
        return
    few = len(curve.steps) <= 40
    panel.plot(
        curve.steps, curve.values, color=colour, label=label, linewidth=1.6,
        marker="o" if few else None, markersize=3.5,
    )  # fmt: skip
    if not any(map(math.isfinite, curve.values)):
        # An empty panel would look as if nothing had been measured.
        panel.text(0.5, 0.5, f"{label}: never finite", color=ORANGE, transform=panel.transAxes,
                   ha="center", fontsize=9)  # fmt: skip
