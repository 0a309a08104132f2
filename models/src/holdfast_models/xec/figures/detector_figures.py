"""Pictures of the detector and of what a model looks at in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import Normalize

from ...drawing import COLOURS, Drawn, label
from ..geometry.layout import FACES, SENSORS, sensors_of
from .drawing import Floats, color_bar, finite, grouped_bars, paper
from .tank import draw_tank

_CHANNELS = ("npho", "time")


def dead_channels(dead_BS: Floats) -> Drawn:
    """Which sensors are dead, and in how many of the events; one event is one row, or the only."""
    share_S = np.atleast_2d(np.asarray(dead_BS, dtype=np.float64)).mean(0)
    always_S = share_S >= 1
    figure, (panel,) = paper(size=(8.0, 7.0))
    colours = colormaps["YlOrRd"].with_extremes(under="#eef3f7")
    image = draw_tank(panel, share_S, norm=Normalize(1e-6, 1), colours=colours)
    color_bar(panel, image, "share of events in which the sensor is dead", shrink=0.6)
    by_face = {face: int(always_S[sensors_of(face)].sum()) for face in FACES}
    reported = ", ".join(f"{face} {number}" for face, number in by_face.items() if number)
    dead, touched = int(always_S.sum()), int((share_S > 0).sum())
    title = f"Dead sensors: {dead} always ({dead / SENSORS:.1%}), {touched - dead} at times"
    panel.set_title(title, fontsize=11)
    caption = f"{title}. Always dead, by face: {reported or 'none'}."
    return Drawn("dead_channels", "Dead channels", caption, figure)


def input_distributions(x_BSC: Floats, npho_valid_BS: Floats, time_valid_BS: Floats) -> Drawn:
    """What the network sees: normalised photons and times by face, where they are valid."""
    figure, panels = paper(1, 2, size=(6.0, 3.9))
    reported: list[str] = []
    for at, (panel, channel) in enumerate(zip(panels, _CHANNELS, strict=True)):
        valid_BS = (npho_valid_BS, time_valid_BS)[at].astype(bool)
        every = finite(x_BSC[..., at][valid_BS])
        low, high = np.quantile(every, (0.0005, 0.9995)) if len(every) else (0.0, 1.0)
        edges = np.linspace(low, max(high, low + 1e-3), 81)
        for face, colour in zip(FACES, COLOURS, strict=False):
            ids = sensors_of(face)
            values = finite(x_BSC[:, ids, at][valid_BS[:, ids]])
            counts, _ = np.histogram(values, edges)
            panel.stairs(
                counts / max(len(values), 1), edges, color=colour, label=face, linewidth=1.3
            )
        label(panel, f"normalised {channel}", "share of the face's valid values")
        panel.set_ylim(0.5 / max(len(every), 10), 1.0)  # before: no values have no logarithm
        panel.set_yscale("log")
        panel.legend(fontsize=8, frameon=False)
        reported.append(
            f"{channel} {low:.2g} to {high:.2g} ({valid_BS.mean():.0%} of sensors valid)"
        )
    caption = (
        f"99.9 % of the inputs lie within: {'; '.join(reported)}. Around 1 in size is healthy."
    )
    return Drawn("input_distributions", "Input distributions", caption, figure)


def saliency_profile(outputs: Sequence[str], shares_KFC: Floats, *, run: str = "") -> Drawn:
    """How much each output depends on each face and channel; bars of one output add up to 1."""
    figure, panels = paper(1, 2, size=(6.4, 3.9))
    for at, (panel, channel) in enumerate(zip(panels, _CHANNELS, strict=True)):
        grouped_bars(panel, FACES, dict(zip(outputs, shares_KFC[..., at], strict=True)))
        label(panel, "", "share of mean |d output / d input|", f"{channel} channel")
        panel.set_ylim(0, 1.1 * float(finite(shares_KFC.ravel()).max(initial=0)) or 1.0)
    caption = (
        "Mean absolute gradient of each output per sensor of a face; an output's bars add up to 1."
    )
    name = f"saliency_profile_{run}" if run else "saliency_profile"
    return Drawn(name, "What the outputs depend on", caption, figure)


def face_weights_figure(weights: Mapping[str, Sequence[float]], tokens: Sequence[str]) -> Drawn:
    """Norm of the first layer of each head by token."""
    figure, (panel,) = paper(size=(7.0, 3.6))
    grouped_bars(panel, tokens, weights)
    panel.axhline(1, color="black", linewidth=0.8, linestyle=":")
    label(panel, "", "norm of first head layer / mean")
    if weights:
        panel.set_ylim(0, 1.25 * max(max(values) for values in weights.values()))
    caption = "How strongly each head reads each face's token; all bars near 1 mean no preference."
    return Drawn("face_weights", "Weights of the faces in the heads", caption, figure)
