"""Hidden sensors and what a model says about them: autoencoder and inpainter."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize

from ...drawing import BLUE, GREEN, GREY, Drawn, label
from ..evaluation.resolution import bootstrap_error, core_fit, effective_sigma
from ..evaluation.scoring import DECADES, PredictorScores
from ..geometry.layout import FACES
from .drawing import Floats, color_bar, finite, grouped_bars, paper
from .tank import draw_tank

_LARGEST = 9e9
_BINS = 16  # of photons, logarithmic
_RESIDUAL = "(predicted - true) / sqrt(true)"
_MOST_ROWS = 200_000  # hidden sensors of one figure


def reconstruction(truth_S: Floats, hidden_S: Floats, predicted_S: Floats) -> Drawn:
    """One event of the autoencoder: truth, what it saw, what it made of it, and the difference.

    Args:
        truth_S: photons, NaN or 1e10 where there are none.
        hidden_S: what was hidden.
        predicted_S: of every sensor; shown where one was hidden.
    """
    hidden_S = np.asarray(hidden_S, dtype=bool)
    truth_S, predicted_S = (np.asarray(one, dtype=np.float64) for one in (truth_S, predicted_S))
    truth_S = np.where(np.abs(truth_S) < _LARGEST, truth_S, np.nan)
    # In units of what counting photons allows, so that dark and bright can be compared.
    unit_S = np.sqrt(np.maximum(np.nan_to_num(truth_S), 1.0))
    off_S = np.where(hidden_S, (predicted_S - truth_S) / unit_S, np.nan)
    reach = float(np.quantile(np.abs(finite(off_S)), 0.98)) if np.isfinite(off_S).any() else 1.0
    light = LogNorm(1.0, max(float(finite(truth_S).max(initial=0)), 10.0))
    viridis = colormaps["viridis"].with_extremes(under=colormaps["viridis"](0.0))
    figure, panels = paper(2, 2, size=(6.4, 5.9))
    shown = {
        "truth": truth_S,
        "what the model saw": np.where(hidden_S, np.nan, truth_S),
        "reconstruction": np.where(hidden_S, predicted_S, truth_S),
    }
    for panel, (title, values_S) in zip(panels, shown.items(), strict=False):
        image = draw_tank(panel, values_S.clip(min=1e-3), norm=light, colours=viridis)
        color_bar(panel, image, "photons", shrink=0.6, extend="min")
        panel.set_title(title, fontsize=10)
    around = Normalize(-reach or -1.0, reach or 1.0)
    image = draw_tank(panels[3], off_S, norm=around, colours="RdBu_r")
    color_bar(panels[3], image, _RESIDUAL, shrink=0.6, extend="both")
    panels[3].set_title(f"residual: {_RESIDUAL}", fontsize=10)
    caption = (
        f"One event of which {hidden_S.sum():,} sensors were hidden (white in what the model saw); "
        f"98 % of the residuals are within {reach:.3g}."
    )
    return Drawn("reconstruction", "Reconstruction of hidden sensors", caption, figure)


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


def baselines(scores: PredictorScores) -> Drawn:
    """The model beside the fillings that learn nothing, by face and by photons."""
    figure, panels = paper(1, 2, size=(7.0, 3.9))
    found = {name: scores.of(name) for name in scores.predictors()}
    groups = (FACES, tuple(f"npho {one}" for one in DECADES))
    for panel, group, what in zip(panels, groups, ("face", "true photons"), strict=True):
        counts = [rows[one].sensors for rows in list(found.values())[:1] for one in group]
        ticks = [
            f"{one.removeprefix('npho ')}\n{n:,}" for one, n in zip(group, counts, strict=False)
        ]
        values = {name: [rows[one].mae for one in group] for name, rows in found.items()}
        errors = {name: [rows[one].errors[0] for one in group] for name, rows in found.items()}
        grouped_bars(panel, ticks, values, errors)
        across = f"{what}, and how many sensors were hidden there"
        label(panel, across, "mean absolute error [photons]")
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
    reported = (
        ("core $\\mu$", core.mean),
        ("core $\\sigma$", core.sigma),
        ("$\\sigma_{eff}$", sigma),
    )
    lines = "\n".join(f"{name} = {value:.3g}" for name, value in reported)
    panel.plot([], [], " ", label=lines)
    panel.legend(fontsize=7, frameon=False, handlelength=0, loc="upper left")
    label(panel, "residual / sqrt(photons)", "hidden sensors", f"{face}: {len(pull):,}")


def _along(bias: Axes, rms: Axes, truth_R: Floats, off_R: Floats) -> None:
    """Mean and RMS of residuals in bins of true photons."""
    edges = np.geomspace(1.0, max(float(truth_R.max(initial=10.0)), 10.0) * 1.001, _BINS + 1)
    centre = np.sqrt(edges[1:] * edges[:-1])
    which = np.searchsorted(edges, truth_R, side="right") - 1

    def both(rows: Floats) -> Floats:
        return np.stack((rows.mean(-1), np.sqrt((rows**2).mean(-1))), axis=-1)

    found: dict[float, tuple[Floats, Floats]] = {}
    for at, place in enumerate(centre):
        own = off_R[which == at]
        if len(own) >= 5:
            found[place] = both(own), bootstrap_error(own, both)
    places = list(found)
    values = np.array([one for one, _ in found.values()]).reshape(-1, 2)
    errors = np.array([one for _, one in found.values()]).reshape(-1, 2)
    looks: Mapping[str, tuple[Axes, str]] = {"mean": (bias, BLUE), "RMS of": (rms, GREEN)}
    for at, (what, (panel, colour)) in enumerate(looks.items()):
        panel.errorbar(places, values[:, at], errors[:, at], fmt="o", markersize=3.5, color=colour)
        panel.set_xscale("log")
        label(panel, "true photons", f"{what} residual [photons]")
    bias.axhline(0, color=GREY, linewidth=0.8, linestyle=":")
    bias.set_yscale("symlog", linthresh=1.0)
    rms.plot(centre, np.sqrt(centre), color=GREY, linestyle=":", label="sqrt(photons)")
    rms.set_yscale("log")
    rms.legend(fontsize=7, frameon=False)


def _faces_first(panels: list[Axes]) -> list[Axes]:
    return [*panels[:3], *panels[4:7]]
