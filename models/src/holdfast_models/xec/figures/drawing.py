"""What the pictures of this family have in common, beside what those of all families have.

Imports matplotlib, which is optional: ``pictures`` looks for it before anything here is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ...drawing import COLOURS, sheet

Floats = NDArray[Any]


def paper(
    rows: int = 1, columns: int = 1, *, size: tuple[float, float] = (4.6, 3.6)
) -> tuple[Figure, list[Axes]]:
    """A sheet with panels of this size in inches, row by row."""
    figure, panels = sheet((size[0] * columns, size[1] * rows), rows, columns)
    for panel in panels:
        panel.tick_params(labelsize=8, direction="in", top=True, right=True)
    return figure, panels


def finite(values: Floats) -> Floats:
    """Without what is not finite."""
    return values[np.isfinite(values)]


def color_bar(panel: Axes, image: Any, label: str, **how: Any) -> None:
    """What the colours of an image mean."""
    bar = panel.figure.colorbar(image, ax=panel, pad=0.01, **how)
    bar.set_label(label, fontsize=9)
    bar.ax.tick_params(labelsize=8)


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
