"""What all pictures have in common: paper, colours, and the words that go with a picture.

Imports matplotlib, which is optional: ``pictures`` looks for it before anything here is imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

# Also told apart by those who do not see red and green as different.
BLUE, ORANGE, GREEN, RED, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#8c959f"
COLOURS = (BLUE, RED, GREEN, ORANGE, "#cc79a7", "#56b4e9", "#000000")

Floats = NDArray[Any]


@dataclasses.dataclass(frozen=True)
class Drawn:
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


def paper(
    rows: int = 1, columns: int = 1, *, size: tuple[float, float] = (4.6, 3.6)
) -> tuple[Figure, list[Axes]]:
    """A figure without any window, with panels of this size in inches, row by row."""
    # Not through pyplot: it keeps figures, and looks for a screen.
    inches = (size[0] * columns, size[1] * rows)
    figure = Figure(figsize=inches, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    grid: Any = figure.subplots(rows, columns, squeeze=False)
    panels: list[Axes] = list(grid.ravel())
    for panel in panels:
        panel.tick_params(labelsize=8, direction="in", top=True, right=True)
        for text, points in ((panel.xaxis.label, 9), (panel.yaxis.label, 9), (panel.title, 10)):
            text.set_fontsize(points)
    return figure, panels


def finite(values: Floats) -> Floats:
    """Without what is not finite."""
    return values[np.isfinite(values)]


def grouped_bars(
    panel: Axes,
    groups: Sequence[str],
    series: Mapping[str, Sequence[float]],
    errors: Mapping[str, Sequence[float]] | None = None,
) -> None:
    """Bars of every series side by side in each group."""
    wide = 0.8 / max(len(series), 1)
    for at, (name, values) in enumerate(series.items()):
        place = np.arange(len(groups)) + (at - (len(series) - 1) / 2) * wide
        look: dict[str, Any] = {"color": COLOURS[at % len(COLOURS)], "label": name}
        if errors:
            look |= {"yerr": errors[name], "error_kw": {"linewidth": 0.8}}
        panel.bar(place, values, wide, **look)
    panel.set_xticks(np.arange(len(groups)), groups, fontsize=8)
    if series:
        panel.legend(fontsize=8, frameon=False)
