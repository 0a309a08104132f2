"""One event: photons and times of all sensors, and where the photon interacted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import LogNorm, Normalize

from ...drawing import Drawn
from ..geometry.layout import SENSORS
from .drawing import Floats, color_bar, finite, paper
from .tank import draw_tank, mark_point

_LARGEST = 9e9  # anything above means that files hold no value
_LIT = 100.0  # photons below which a time means nothing


class ShownEvent(NamedTuple):
    """One event as it is drawn: photons and seconds as in files; energies in GeV, places in cm."""

    npho_S: Floats
    time_S: Floats
    run: int | None = None
    number: int | None = None
    true_uvw: Floats | None = None
    pred_uvw: Floats | None = None
    true_energy: float | None = None
    pred_energy: float | None = None
    loss: float | None = None


def event_of(arrays: Mapping[str, Floats], *, loss: float | None = None) -> ShownEvent:
    """An event from arrays by the names of batches and of predictions."""
    uvw = [np.array([arrays[f"{side}_{name}"] for name in "uvw"], dtype=np.float64)
           if f"{side}_u" in arrays else None for side in ("true", "pred")]  # fmt: skip
    true = uvw[0] if uvw[0] is not None else arrays.get("uvwFI")
    true_energy = arrays.get("true_energy", arrays.get("energy"))
    energies = (true_energy, arrays.get("pred_energy"))
    true_gev, pred_gev = (None if one is None else float(one) for one in energies)
    ids = [arrays.get(name, arrays.get(f"{name}_id")) for name in ("run", "event")]
    run, number = (None if one is None else int(one) for one in ids)
    time_S = arrays.get("time", np.full(SENSORS, np.nan))
    return ShownEvent(arrays["npho"], time_S, run, number, true, uvw[1], true_gev, pred_gev, loss)


def event_display(event: ShownEvent, *, name: str = "event") -> Drawn:
    """Draw one event: photons on the left, times on the right."""
    npho_S, time_S = (np.asarray(one, dtype=np.float64) for one in (event.npho_S, event.time_S))
    dead_S = ~(np.isfinite(npho_S) & (npho_S < _LARGEST))
    light_S = np.where(dead_S, np.nan, npho_S)
    timed_S = ~dead_S & (npho_S >= _LIT) & np.isfinite(time_S) & (np.abs(time_S) < _LARGEST)
    ns_S = np.where(timed_S, time_S * 1e9, np.nan)
    figure, panels = paper(1, 2, size=(7.0, 7.2))
    most = max(float(finite(light_S).max(initial=0)), 10.0)
    low, high = np.quantile(finite(ns_S), (0.01, 0.99)) if timed_S.any() else (0.0, 1.0)
    looks = (
        (light_S.clip(min=1e-3), LogNorm(1.0, most), "viridis", "photons per sensor"),
        (ns_S, Normalize(low, max(high, low + 0.1)), "plasma", "time [ns]"),
    )
    for panel, (values_S, norm, colours, label) in zip(panels, looks, strict=True):
        # White means no value: what is dark must not look like it.
        shown = colormaps[colours].with_extremes(under=colormaps[colours](0.0))
        image = draw_tank(panel, values_S, norm=norm, colours=shown, dead_S=dead_S)
        color_bar(panel, image, label, shrink=0.7, location="bottom", extend="min")
        for uvw, marker, colour, who in (
            (event.true_uvw, "o", "black", "true"),
            (event.pred_uvw, "x", "magenta", "predicted"),
        ):
            if uvw is not None:
                mark_point(panel, uvw, marker=marker, colour=colour, label=who)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(loc="upper right", fontsize=8, frameon=False)
    panels[0].set_title(f"Photons: {np.nansum(light_S):,.0f} in all", fontsize=10)
    panels[1].set_title(f"Times of {timed_S.sum():,} sensors above {_LIT:.0f} photons", fontsize=10)
    title = _title(event)
    figure.suptitle(title, fontsize=11)
    caption = (
        f"{title}. All six faces unrolled; crosses are the {dead_S.sum()} dead sensors, white "
        "cells have no value. The points are drawn on each face, largest on the inner one."
    )
    return Drawn(name, title.split("\n")[0], caption.replace("\n", ", "), figure)


def _title(event: ShownEvent) -> str:
    loss = None if event.loss is None else f"{event.loss:.4g}"
    facts = {"run": event.run, "event": event.number, "loss": loss}
    parts = [f"{name} {value}" for name, value in facts.items() if value is not None]
    lines = [", ".join(parts) or "event"]
    reported: list[str] = []
    for who, energy, uvw in (
        ("true", event.true_energy, event.true_uvw),
        ("predicted", event.pred_energy, event.pred_uvw),
    ):
        what = [] if energy is None else [f"{energy * 1e3:.2f} MeV"]
        if uvw is not None:
            what.append("(u, v, w) = ({:.1f}, {:.1f}, {:.1f}) cm".format(*uvw))
        if what:
            reported.append(f"{who} {' at '.join(what)}")
    return "\n".join([*lines, "; ".join(reported)]) if reported else lines[0]
