"""Pictures of what is inside: spikes, time constants, gates and fast weights.

T tokens, K spiking units, U liquid units, S spike steps, G heads of a gate. Imports matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from ...curves import Curve
from ...drawing import BLUE, GREY, ORANGE, RED, label, line, paper, symmetric, whole_numbers
from .look import Floats

_TOKENS = 64  # drawn of a sequence
_BOX = ("whislo", "q1", "med", "q3", "whishi")


def spike_raster(train_STK: Floats) -> Figure:
    """Every spike of every unit, and the rate of each unit over the tokens that are drawn."""
    train_TSK = np.moveaxis(train_STK[:, :_TOKENS], 0, 1)
    tokens, _, units = train_TSK.shape
    figure, (left, right) = paper(5, 1, height=min(6.0, 2.2 + 0.04 * units))
    left.imshow(
        train_TSK.reshape(-1, units).T, cmap="Greys", vmin=0, vmax=1, aspect="auto",
        origin="lower", interpolation="nearest", extent=(0, tokens, -0.5, units - 0.5),
    )  # fmt: skip
    label(left, "token (spike steps within it)", "unit")
    whole_numbers(left)
    rate_K = train_TSK.mean((0, 1))
    right.barh(np.arange(units), rate_K, height=0.8, color=BLUE)
    right.axvline(float(rate_K.mean()), color=RED, linewidth=1)
    right.set(xlim=(0, 1), xticks=[0, 0.5, 1], ylim=(-0.5, units - 0.5), yticks=[])
    label(right, "rate", title=f"mean {rate_K.mean():.2f}")
    return figure


def time_constants(tau_TU: Sequence[Floats]) -> Figure:
    """Distribution per block, and how far the input moves it from token to token."""
    figure, (left, right) = paper(1, 1.6)
    boxes = []
    for number, tau in enumerate(tau_TU):
        shares = dict(zip(_BOX, np.percentile(tau, (5, 25, 50, 75, 95)), strict=True))
        boxes.append({**shares, "label": str(number)})
        right.plot(np.median(tau, 1), color=_shade(number, len(tau_TU)), label=str(number))
    left.bxp(boxes, showfliers=False, medianprops={"color": RED})
    for panel in (left, right):
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_locator(NullLocator())
        panel.axhline(1, color=GREY, linewidth=0.8, linestyle=":")
    label(left, "block", "time constant (steps)", "All units and tokens: 5, 25, 50, 75, 95 %")
    label(right, "token", title="Median over units")
    right.legend(fontsize=8, frameon=False, ncols=8, title="block", title_fontsize=8)
    return figure


def gate_openings(opening_TG: Sequence[Floats]) -> Figure:
    """Every head over the tokens, and its mean; 1 is all liquid, 0 all Mamba."""
    all_NT = np.concatenate([one.T for one in opening_TG])
    heads, blocks = opening_TG[0].shape[1], len(opening_TG)
    figure, (left, right) = paper(4, 1.2, height=max(2.6, min(6.0, 1.6 + 0.16 * len(all_NT))))
    image = left.imshow(all_NT, cmap="RdBu", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    figure.colorbar(image, ax=left, pad=0.01).set_label("1 liquid, 0 Mamba", fontsize=8)
    label(left, "token", f"block, {heads} heads each")
    left.set_yticks([heads * (n + 0.5) - 0.5 for n in range(blocks)], map(str, range(blocks)))
    for border in range(1, blocks):
        left.axhline(heads * border - 0.5, color="black", linewidth=0.8)
    mean_N = all_NT.mean(1)
    right.barh(np.arange(len(mean_N)), mean_N, height=0.8, color=BLUE)
    right.axvline(0.5, color=GREY, linewidth=0.8, linestyle=":")
    right.set(xlim=(0, 1), xticks=[0, 0.5, 1], ylim=(len(mean_N) - 0.5, -0.5), yticks=[])
    label(right, "mean opening")
    return figure


def fast_weights(fast_UK: Sequence[Floats], recorded: Mapping[str, Curve]) -> Figure:
    """The matrix of the first block, all values block by block, and what training recorded."""
    figure, (left, middle, right) = paper(1.2, 1, 1)
    reach = symmetric(fast_UK[0])
    image = left.imshow(fast_UK[0], cmap="RdBu_r", vmin=-reach, vmax=reach, aspect="auto",
                        interpolation="nearest")  # fmt: skip
    figure.colorbar(image, ax=left, pad=0.02).ax.tick_params(labelsize=8)
    label(left, "spiking unit", "liquid unit", "Fast weights of block 0")
    whole_numbers(left)
    most = symmetric(*fast_UK)
    for number, fast in enumerate(fast_UK):
        colour, values = _shade(number, len(fast_UK)), fast[np.isfinite(fast)]
        middle.hist(values, np.linspace(-most, most, 41).tolist(), histtype="step", color=colour,
                    label=str(number))  # fmt: skip
    middle.set_yscale("log")
    middle.locator_params(axis="x", nbins=4)
    label(middle, "fast weight", title="Distribution")
    middle.legend(fontsize=8, frameon=False, title="block", title_fontsize=8)
    line(right, recorded.get("fast_norm"), "norm of all fast weights", BLUE)
    line(right, recorded.get("fast_change"), "mean change in an update", ORANGE)
    bound = recorded.get("fast_at_bound", Curve([], []))
    reported = f", {bound.values[-1]:.0%} at the bound" if bound.values else ", nothing recorded"
    label(right, "optimizer step", title=f"Over training{reported}")
    if right.lines:
        # Updates that change nothing are drawn at the bottom, too.
        right.set_yscale("symlog", linthresh=1e-8)
        right.set_ylim(0, 3 * right.get_ylim()[1])
        right.legend(fontsize=8, frameon=False)
    return figure


def _shade(number: int, count: int) -> tuple[float, float, float, float]:
    """Of a block: dark for the first, light for the last."""
    return colormaps["viridis"](0.8 * number / max(1, count - 1))
