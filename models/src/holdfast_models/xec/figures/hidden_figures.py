"""Hidden sensors and what a model says about them: autoencoder and inpainter."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize

from ..evaluation.bootstrap import bootstrap_error
from ..evaluation.resolution import core_fit, effective_sigma
from ..evaluation.scoring import DECADES, Scores
from ..geometry.layout import FACES
from .drawing import BLUE, GREEN, GREY, Drawn, Floats, finite, grouped_bars, paper
from .tank import draw_tank

_LARGEST = 9e9
_BINS = 16  # of photons, logarithmic
_MOST_ROWS = 200_000  # hidden sensors of one figure


def reconstruction(
    truth_S: Floats, hidden_S: Floats, predicted_S: Floats, *, unit: str = "photons",
    name: str = "reconstruction",
) -> Drawn:  # fmt: skip
    """One event of the autoencoder: truth, what it saw, what it made of it, and the difference.

    Args:
        truth_S: in physical units, NaN or 1e10 where there is none.
        hidden_S: what was hidden.
        predicted_S: of every sensor; shown where one was hidden.
        unit: photons, drawn on a logarithmic scale, or ns.
        name: of the file.
    """
    hidden_S = np.asarray(hidden_S, dtype=bool)
    truth_S, predicted_S = (np.asarray(one, dtype=np.float64) for one in (truth_S, predicted_S))
    known_S = np.isfinite(truth_S) & (np.abs(truth_S) < _LARGEST)
    truth_S = np.where(known_S, truth_S, np.nan)
    seen_S = np.where(hidden_S, np.nan, truth_S)
    filled_S = np.where(hidden_S, predicted_S, truth_S)
    off_S = np.where(hidden_S & known_S, predicted_S - truth_S, np.nan)
    light = unit == "photons"
    shown = finite(truth_S)
    norm: Normalize
    if light:
        norm = LogNorm(1.0, max(float(shown.max(initial=0)), 10.0))
        # In units of what counting photons allows, so that dark and bright can be compared.
        off_S = off_S / np.sqrt(np.maximum(np.nan_to_num(truth_S), 1.0))
    else:
        low, high = np.quantile(shown, (0.01, 0.99)) if len(shown) else (0.0, 1.0)
        norm = Normalize(low, max(high, low + 0.1))
    reach = float(np.quantile(np.abs(finite(off_S)), 0.98)) if np.isfinite(off_S).any() else 1.0
    colours = colormaps["viridis" if light else "plasma"]
    colours = colours.with_extremes(under=colours(0.0))
    residual = "(predicted - true) / sqrt(true)" if light else "predicted - true [ns]"
    figure, panels = paper(2, 2, size=(6.4, 5.9))
    titles = ("truth", "what the model saw", "reconstruction", f"residual: {residual}")
    for panel, title, values_S in zip(
        panels, titles, (truth_S, seen_S, filled_S, off_S), strict=True
    ):
        last = values_S is off_S
        values_S = values_S.clip(min=1e-3) if light and not last else values_S
        image = draw_tank(
            panel, values_S, norm=Normalize(-reach or -1.0, reach or 1.0) if last else norm,
            colours="RdBu_r" if last else colours,
        )  # fmt: skip
        panel.set_title(title, fontsize=10)
        bar = figure.colorbar(
            image, ax=panel, shrink=0.6, pad=0.01, extend="both" if last else "min"
        )
        bar.set_label(residual if last else unit, fontsize=8)
        bar.ax.tick_params(labelsize=7)
    caption = (
        f"One event of which {hidden_S.sum():,} sensors were hidden (white in what the model saw); "
        f"98 % of the residuals are within {reach:.3g}."
    )
    return Drawn(name, "Reconstruction of hidden sensors", caption, figure)


def residuals(truth_R: Floats, predicted_R: Floats, face_R: Floats) -> Drawn:
    """Hidden sensors of the inpainter, face by face, and along their photons."""
    known_R = np.isfinite(truth_R) & np.isfinite(predicted_R) & (np.abs(truth_R) < _LARGEST)
    some = np.flatnonzero(known_R)[:_MOST_ROWS]
    truth_R, off_R, face_R = truth_R[some], (predicted_R - truth_R)[some], face_R[some]
    pull_R = off_R / np.sqrt(np.maximum(truth_R, 1.0))
    figure, panels = paper(2, 4, size=(4.0, 3.3))
    for code, (panel, face) in enumerate(zip(_faces_first(panels), FACES, strict=True)):
        _face(panel, face, pull_R[face_R == code])
    _along(panels[3], panels[7], truth_R, off_R)
    caption = (
        f"{len(some):,} hidden sensors. Left: residuals in units of sqrt(photons), by face; right: "
        "mean and RMS of the residual along the true photons; a good filling has no bias and an "
        "RMS that follows sqrt(photons)."
    )
    return Drawn("inpainting_residuals", "Filling of hidden sensors", caption, figure)


def baselines(scores: Scores) -> Drawn:
    """The model beside the fillings that learn nothing, by face and by photons."""
    figure, panels = paper(1, 2, size=(7.0, 3.9))
    found = {name: scores.of(name) for name in scores.predictors()}
    groups = (FACES, tuple(f"npho {one}" for one in DECADES))
    for panel, group, label in zip(panels, groups, ("face", "true photons"), strict=True):
        counts = [rows[one].sensors for rows in list(found.values())[:1] for one in group]
        ticks = [
            f"{one.removeprefix('npho ')}\n{n:,}" for one, n in zip(group, counts, strict=False)
        ]
        values = {name: [rows[one].mae for one in group] for name, rows in found.items()}
        errors = {name: [rows[one].errors[0] for one in group] for name, rows in found.items()}
        grouped_bars(panel, ticks, values, errors)
        panel.set_xlabel(f"{label}, and how many sensors were hidden there")
        panel.set_ylabel("mean absolute error [photons]")
        heights = [one for some in values.values() for one in some if one > 0]
        if heights and max(heights) > 20 * min(heights):
            panel.set_yscale("log")
    caption = (
        "Mean absolute error of each filling; errors are statistical, from drawing events again."
    )
    return Drawn("inpainting_baselines", "Filling beside baselines", caption, figure)


def _face(panel: Axes, face: str, pull: Floats) -> None:
    sigma = effective_sigma(pull)
    reach = 6 * sigma if sigma > 0 else 1.0
    middle = float(np.median(pull)) if len(pull) else 0.0
    panel.hist(pull, bins=60, range=(middle - reach, middle + reach), color=GREY, alpha=0.5)
    core = core_fit(pull)
    told = (("core $\\mu$", core.mean), ("core $\\sigma$", core.sigma), ("$\\sigma_{eff}$", sigma))
    label = "\n".join(f"{name} = {value:.3g}" for name, value in told)
    panel.plot([], [], " ", label=label)
    panel.legend(fontsize=7, frameon=False, handlelength=0, loc="upper left")
    panel.set_title(f"{face}: {len(pull):,}", fontsize=10)
    panel.set_xlabel("residual / sqrt(photons)")
    panel.set_ylabel("hidden sensors")


def _along(bias: Axes, rms: Axes, truth_R: Floats, off_R: Floats) -> None:
    """Mean and RMS of residuals in bins of true photons."""
    edges = np.geomspace(1.0, max(float(truth_R.max(initial=10.0)), 10.0) * 1.001, _BINS + 1)
    centre = np.sqrt(edges[1:] * edges[:-1])
    which = np.searchsorted(edges, truth_R, side="right") - 1

    def both(rows: Floats) -> Floats:
        return np.stack((rows.mean(-1), np.sqrt((rows**2).mean(-1))), axis=-1)

    found: dict[float, tuple[Floats, Floats]] = {}
    for at, place in enumerate(centre):
        mine = off_R[which == at]
        if len(mine) >= 5:
            found[place] = both(mine), bootstrap_error(mine, both)
    places = list(found)
    values = np.array([one for one, _ in found.values()]).reshape(-1, 2)
    errors = np.array([one for _, one in found.values()]).reshape(-1, 2)
    looks: Mapping[str, tuple[Axes, str]] = {"mean": (bias, BLUE), "RMS of": (rms, GREEN)}
    for at, (what, (panel, colour)) in enumerate(looks.items()):
        panel.errorbar(places, values[:, at], errors[:, at], fmt="o", markersize=3.5, color=colour)
        panel.set_xscale("log")
        panel.set_xlabel("true photons")
        panel.set_ylabel(f"{what} residual [photons]")
    bias.axhline(0, color=GREY, linewidth=0.8, linestyle=":")
    bias.set_yscale("symlog", linthresh=1.0)
    rms.plot(centre, np.sqrt(centre), color=GREY, linestyle=":", label="sqrt(photons)")
    rms.set_yscale("log")
    rms.legend(fontsize=7, frameon=False)


def _faces_first(panels: list[Axes]) -> list[Axes]:
    return [*panels[:3], *panels[4:7]]
