"""Resolution of each task: residuals with fits, predicted against true, profiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from ...drawing import BLUE, GREEN, GREY, ORANGE, RED, Drawn, label
from ..evaluation.regression_metrics import (
    QUANTITIES,
    Columns,
    known_rows,
    opening_angle,
    residual_of,
)
from ..evaluation.resolution import (
    SHARE,
    core_fit,
    double_gaussian,
    effective_sigma,
    energy_resolution,
    half_width,
    profile,
)
from .drawing import Floats, color_bar, finite, paper


class _Axis(NamedTuple):
    """How a quantity is shown: symbol, units and factors of its values and its residuals."""

    symbol: str
    unit: str
    factor: float = 1.0
    fine_unit: str = ""
    fine: float = 0.0

    @property
    def label(self) -> str:
        return f"true {self.symbol} [{self.unit}]"

    @property
    def residual(self) -> tuple[str, float]:
        return self.fine_unit or self.unit, self.fine or self.factor


_AXES = {
    "theta": _Axis("theta", "deg"),
    "phi": _Axis("phi", "deg"),
    "energy": _Axis("energy", "MeV", 1e3),
    "timing": _Axis("time", "ns", 1e9, "ps", 1e12),
    "u": _Axis("u", "cm"),
    "v": _Axis("v", "cm"),
    "w": _Axis("w", "cm"),
}
_BINS, _REACH = 80, 6.0  # of histograms; in effective sigmas
_POINTS: dict[str, Any] = {"fmt": "o", "markersize": 3.5, "linewidth": 1.0, "capsize": 1.5}
_MOST_DOTS = 400  # more make an image


def resolution(task: str, columns: Columns) -> list[Drawn]:
    """All pictures of one task's table of predictions."""
    columns = known_rows(columns, task)
    drawn = [_resolution(task, columns)]
    spread = [name for name in QUANTITIES[task] if f"pred_{name}_log_var" in columns]
    return [*drawn, _pulls(task, spread, columns)] if spread else drawn


def _resolution(task: str, columns: Columns) -> Drawn:
    names = QUANTITIES[task]
    rows = len(names) + (task in ("energy", "angle"))
    figure, panels = paper(rows, 4, size=(4.3, 3.5))
    reported: list[str] = []
    for name, four in zip(names, _by_four(panels), strict=False):
        residual = residual_of(columns, name)
        unit, factor = _AXES[name].residual
        _histogram(four[0], residual * factor, f"{_AXES[name].symbol} residual", unit)
        _against(four[1], columns, name)
        _profiles(four[2], four[3], columns[f"true_{name}"], residual, name, name)
        width = np.quantile(np.abs(residual), SHARE) * factor if len(residual) else np.nan
        reported.append(f"{_AXES[name].symbol} {width:.3g} {unit}")
    if task == "energy":
        _energy(panels[4:], columns)
    if task == "angle":
        _opening(panels[8:], columns)
    figure.suptitle(f"Resolution of {task}: {len(columns[f'true_{names[0]}']):,} events")
    caption = (
        f"68 % of the absolute residuals lie within {', '.join(reported)}; a flat bias around 0 "
        "and "
        "an even width along the truth are what to look for."
    )
    return Drawn(f"resolution_{task}", f"Resolution of {task}", caption, figure)


def _histogram(panel: Axes, values: Floats, what: str, unit: str) -> None:
    """Residuals with the fits of their core and tail; the parameters in the legend."""
    label(panel, f"{what} [{unit}]" if unit else what, "events")
    if not len(values):
        return _empty(panel)
    sigma, middle = effective_sigma(values), float(np.median(values))
    reach = _REACH * sigma if sigma > 0 else 1.0
    counts, edges = np.histogram(values, bins=_BINS, range=(middle - reach, middle + reach))
    outside = len(values) - int(counts.sum())
    panel.stairs(counts, edges, color=GREY, fill=True, alpha=0.45,
                 label=f"{len(values):,} events, {outside} outside")  # fmt: skip
    x, step = np.linspace(edges[0], edges[-1], 400), edges[1] - edges[0]
    core = core_fit(values)
    if core.sigma > 0:
        near = x[np.abs(x - core.mean) <= 2 * core.sigma]
        panel.plot(near, core.density(near) * step, color=BLUE, linewidth=1.8, label=(
            f"Gaussian core\n$\\mu$ = {core.mean:.3g} $\\pm$ {core.mean_error:.2g}"
            f"\n$\\sigma$ = {core.sigma:.3g} $\\pm$ {core.sigma_error:.2g} {unit}"))  # fmt: skip
    both = double_gaussian(values)
    if both is not None:
        _, share, _, first, _, second = both.values
        panel.plot(x, both.density(x) * step, color=RED, linewidth=1.2, linestyle="--", label=(
            f"double Gaussian, $\\chi^2$/ndf = {both.chi2:.0f}/{both.ndf}"
            f"\n{share:.0%} with $\\sigma$ = {first:.3g}, rest {second:.3g}"))  # fmt: skip
    panel.plot([], [], " ", label=f"$\\sigma_{{eff}}$ = {sigma:.3g} {unit}")
    panel.set_yscale("log")
    # Room for the legend above the peak.
    panel.set_ylim(0.5, max(10.0, float(counts.max())) ** 1.75)
    panel.legend(fontsize=7, frameon=False, loc="upper left", labelspacing=0.3)


def _against(panel: Axes, columns: Columns, name: str) -> None:
    axis = _AXES[name]
    true, predicted = (columns[f"{side}_{name}"] * axis.factor for side in ("true", "pred"))
    label(panel, axis.label, axis.label.replace("true", "predicted"))
    if not len(true):
        return _empty(panel)
    if len(true) > _MOST_DOTS:
        image = panel.hist2d(true, predicted, bins=70, norm=LogNorm(), cmap="viridis")[3]
        color_bar(panel, image, "events")
    else:
        panel.plot(true, predicted, ".", color=BLUE, markersize=4)
    ends = (float(true.min()), float(true.max()))
    panel.plot(ends, ends, color=RED, linewidth=0.9, linestyle=":")


def _profiles(bias: Axes, width: Axes, along: Floats, residual: Floats, of: str, by: str) -> None:
    """Bias and 68 % width of a residual in bins of a truth."""
    unit, fine = _AXES[of].residual
    found = profile(along * _AXES[by].factor, residual * fine)
    bias.errorbar(found.centre, found.bias, found.bias_error, color=BLUE, **_POINTS)
    bias.axhline(0, color=GREY, linewidth=0.8, linestyle=":")
    label(bias, _AXES[by].label, f"mean residual [{unit}]")
    width.errorbar(found.centre, found.width, found.width_error, color=GREEN, **_POINTS)
    label(width, _AXES[by].label, f"half of central 68 % [{unit}]")
    top = finite(found.width + np.nan_to_num(found.width_error))
    width.set_ylim(0, 1.15 * float(top.max(initial=0)) or 1.0)


def _energy(panels: Sequence[Axes], columns: Columns) -> None:
    """sigma / E along E with its three terms, and the relative width along the place."""
    first, *others = panels
    label(first, "true energy [MeV]", r"$\sigma / E$ [%]")
    true, predicted = columns["true_energy"], columns["pred_energy"]
    some = true > 0
    found = energy_resolution(true[some], predicted[some])
    points = 1e3 * found.energy, 100 * found.sigma, 100 * found.error
    first.errorbar(*points, color=BLUE, label="Gaussian core", **_POINTS)
    if found.terms is not None and found.term_errors is not None:
        x = np.linspace(found.energy.min(), found.energy.max(), 200)
        a, b, c = found.terms * (100, 100, 1e5)
        da, db, dc = found.term_errors * (100, 100, 1e5)
        first.plot(1e3 * x, 100 * found.curve(x), color=RED, linewidth=1.3, label=(
            r"$\sqrt{(a/\sqrt{E})^2 + b^2 + (c/E)^2}$, E in GeV"
            f"\na = {a:.2g} $\\pm$ {da:.2g} %\nb = {b:.2g} $\\pm$ {db:.2g} %"
            f"\nc = {c:.2g} $\\pm$ {dc:.2g} % MeV"))  # fmt: skip
        first.legend(fontsize=7, frameon=False)
    if len(found.sigma):
        first.set_ylim(0, 170 * float(found.sigma.max()))
    relative = 100 * (predicted[some] - true[some]) / true[some]
    for panel, name in zip(others, "uvw", strict=True):
        along = columns.get(f"true_{name}")
        label(panel, _AXES[name].label, "relative energy residual [%]")
        if along is None:
            _empty(panel, f"no true {name} in this table")
            continue
        seen = profile(along[some], relative)
        panel.errorbar(seen.centre, seen.bias, seen.bias_error, color=BLUE, label="mean", **_POINTS)
        panel.errorbar(seen.centre, seen.width, seen.width_error, color=GREEN,
                       label="half of central 68 %", **_POINTS)  # fmt: skip
        panel.axhline(0, color=GREY, linewidth=0.8, linestyle=":")
        panel.legend(fontsize=7, frameon=False)


def _opening(panels: Sequence[Axes], columns: Columns) -> None:
    """The angle between predicted and true direction, and where it is large."""
    psi = opening_angle(columns)
    spread, *along, unused = panels
    unused.set_axis_off()
    label(spread, "opening angle [deg]", "events")
    if not len(psi):
        for panel in (spread, *along):
            _empty(panel)
        return
    most = float(np.quantile(psi, 0.99)) or 1.0
    spread.hist(psi, bins=60, range=(0, most), color=GREY, alpha=0.45)
    at = float(np.quantile(psi, SHARE))
    spread.axvline(at, color=RED, linewidth=1.3, label=f"68 % below {at:.3g} deg")
    spread.legend(fontsize=7, frameon=False)
    for panel, name in zip(along, QUANTITIES["angle"], strict=True):
        found = profile(columns[f"true_{name}"], psi)
        panel.errorbar(found.centre, found.bias, found.bias_error, color=BLUE, **_POINTS)
        label(panel, _AXES[name].label, "mean opening angle [deg]")
        panel.set_ylim(bottom=0)


def _pulls(task: str, names: Sequence[str], columns: Columns) -> Drawn:
    """Residuals in units of the uncertainty that the model predicted for them."""
    figure, panels = paper(1, len(names))
    reported: list[str] = []
    for panel, name in zip(panels, names, strict=True):
        sigma = np.exp(0.5 * columns[f"pred_{name}_log_var"])
        pull = finite(residual_of(columns, name) / np.where(sigma > 0, sigma, np.nan))
        _histogram(panel, pull, f"{_AXES[name].symbol} residual / predicted sigma", "")
        reported.append(f"{_AXES[name].symbol} {half_width(pull):.2f}")
    caption = (
        f"Half of the central 68 % of the pulls: {', '.join(reported)}; below 1 the model is more "
        "exact than it says, above 1 it is too sure of itself."
    )
    return Drawn(f"pulls_{task}", f"Pulls of {task}", caption, figure)


def _by_four(panels: Sequence[Axes]) -> list[Sequence[Axes]]:
    return [panels[at : at + 4] for at in range(0, len(panels), 4)]


def _empty(panel: Axes, why: str = "no finite rows") -> None:
    panel.text(0.5, 0.5, why, color=ORANGE, transform=panel.transAxes, ha="center", fontsize=9)
