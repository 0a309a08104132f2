"""Pictures of the flows: their paths, their ends, how long they live, what becomes of the energy.

N flows of the first sample, T lattice steps, W and H the sides of the surface.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from numpy.typing import NDArray

from ...drawing import BLUE, GREEN, GREY, ORANGE, RED, Drawn, paper, symmetric, whole_numbers
from .trajectories import Floats, Trajectories

__all__ = ["of"]

# Lines and arrows of one panel: more cannot be told apart.
_MOST_LINES, _MOST_ARROWS = 60, 500
_ENDS = {0: "o", 1: "v", 2: "^"}
_ENERGY = "coolwarm"


def of(trajectories: Trajectories | None) -> list[Drawn]:
    """All pictures of flows through the lattice; none where the model has no core."""
    if trajectories is None:
        return []
    return [
        _paths(trajectories),
        _exits(trajectories),
        _living(trajectories),
        _energy(trajectories),
    ]


def _paths(trajectories: Trajectories) -> Drawn:
    lattice = trajectories.lattice
    figure, (front, side, top) = paper(1, 1, 1.05)
    most = symmetric(trajectories.energy_N)
    start_N3 = _starts(trajectories)
    row, column = lattice.height // 2, lattice.width // 2
    _slice(front, trajectories, 0, np.rint(start_N3[:, 1]) == row, most)
    front.set_title(f"Slice y = {row}", fontsize=10)
    _slice(side, trajectories, 1, np.rint(start_N3[:, 0]) == column, most)
    side.set_title(f"Slice x = {column}", fontsize=10)
    chosen = _spread(np.arange(len(start_N3)), _MOST_ARROWS)
    begin_N3, end_N3 = start_N3[chosen], trajectories.place_TN3[-1, chosen]
    across_N, up_N = (end_N3 - begin_N3)[:, :2].T
    top.quiver(
        begin_N3[:, 0], begin_N3[:, 1], across_N, up_N, color=GREY, alpha=0.6, angles="xy",
        scale_units="xy", scale=1, width=0.005, headwidth=0, headlength=0, headaxislength=0,
    )  # fmt: skip
    dots = top.scatter(
        end_N3[:, 0], end_N3[:, 1], c=trajectories.energy_N[chosen], s=16, cmap=_ENERGY,
        norm=Normalize(-most, most), edgecolors=GREY, linewidths=0.4, zorder=3,
    )  # fmt: skip
    top.set_title("From above: start and end", fontsize=10)
    _cells(top, lattice.width, lattice.height)
    bar = figure.colorbar(dots, ax=top, shrink=0.85)
    bar.set_label("energy at the end", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    labels = ("reached neither face", "left at z = 0", f"left at z = {lattice.depth}")
    handles = [
        front.plot([], [], marker, color=GREY, markersize=5, label=label)[0]
        for marker, label in zip(_ENDS.values(), labels, strict=True)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    caption = (
        f"Flows of one sample: each begins in a cell of the middle plane (z = {lattice.depth // 2})"
        f" and should reach z = 0 or z = {lattice.depth}; colour is the energy it carries there."
    )
    return Drawn("paths", "Flow paths", caption, figure)


def _slice(
    panel: Axes, trajectories: Trajectories, axis: int, in_slice_N: NDArray[np.bool_], most: float
) -> None:
    """The flows that begin in a slice, seen from its side."""
    chosen = _spread(np.flatnonzero(in_slice_N), _MOST_LINES)
    lines = trajectories.place_TN3[:, chosen][:, :, [axis, 2]].transpose(1, 0, 2)
    paths = LineCollection(
        list(lines), cmap=_ENERGY, norm=Normalize(-most, most), linewidths=1.5, alpha=0.9
    )
    paths.set_array(trajectories.energy_N[chosen])
    panel.add_collection(paths)
    colours = paths.to_rgba(trajectories.energy_N[chosen])
    for code, marker in _ENDS.items():
        ended = trajectories.exit_N[chosen] == code
        panel.scatter(
            *lines[ended, -1].T, marker=marker, c=colours[ended], s=22, edgecolors=GREY,
            linewidths=0.5, zorder=3,
        )  # fmt: skip
    lattice = trajectories.lattice
    for height in (0, lattice.depth):
        panel.axhline(height, color="black", linewidth=1)
    panel.axhline(lattice.depth // 2, color=GREY, linewidth=0.8, linestyle=":")
    size = lattice.width if axis == 0 else lattice.height
    whole_numbers(panel)
    panel.set_xlim(-0.5, size - 0.5)
    panel.set_ylim(-0.04 * lattice.depth, 1.04 * lattice.depth)
    panel.set_xlabel("xy"[axis], fontsize=9)
    panel.set_ylabel("z", fontsize=9)


def _exits(trajectories: Trajectories) -> Drawn:
    lattice = trajectories.lattice
    figure, panels = paper(1, 1, 1)
    total = max(float(trajectories.exits_3HW.sum()), 1e-9)
    most = max(float(trajectories.exits_3HW.max()), 1e-9)
    names = ("Left at z = 0", f"Left at z = {lattice.depth}", "Reached neither face")
    image = None
    shares: list[float] = []
    for panel, name, map_HW in zip(panels, names, trajectories.exits_3HW, strict=True):
        image = panel.imshow(map_HW, origin="lower", cmap="viridis", vmin=0, vmax=most)
        shares.append(float(map_HW.sum()) / total)
        panel.set_title(f"{name}: {shares[-1]:.0%}", fontsize=10)
        panel.set_xlabel("x", fontsize=9)
        whole_numbers(panel)
    panels[0].set_ylabel("y", fontsize=9)
    if image is not None:
        bar = figure.colorbar(image, ax=panels, shrink=0.85)
        bar.set_label("flows per sample", fontsize=8)
        bar.ax.tick_params(labelsize=7)
    caption = (
        f"Where flows ended, by cell, the mean of {_samples(trajectories)}: an even map uses the "
        "whole surface, a few bright cells mean that flows gather and the rest stays empty."
    )
    return Drawn("exits", "Exit map", caption, figure)


def _living(trajectories: Trajectories) -> Drawn:
    living, lattice = trajectories.living, trajectories.lattice
    figure, (panel,) = paper(1)
    parts = {
        f"left at z = {lattice.depth}": (living.high, ORANGE),
        "left at z = 0": (living.low, GREEN),
        "died": (living.died, RED),
        "under way": (living.under_way, BLUE),
    }
    steps = np.arange(len(living.under_way))
    below = np.zeros(len(steps))
    for name, (counts, colour) in parts.items():
        panel.bar(steps, counts, 0.9, bottom=below, label=name, color=colour)
        below = below + counts
    whole_numbers(panel)
    panel.set_xlabel("lattice step", fontsize=9)
    panel.set_ylabel("flows per sample", fontsize=9)
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right upper", fontsize=8, frameon=False)
    made = sum(float(counts[-1]) for counts, _ in parts.values())
    left = float(living.under_way[-1]) / max(made, 1e-9)
    caption = (
        "How many flows still travel after each lattice step, the mean of "
        f"{_samples(trajectories)}; at the end {left:.0%} of {made:.0f} flows were still under way."
    )
    return Drawn("living", "Living flows", caption, figure)


def _energy(trajectories: Trajectories) -> Drawn:
    figure, (begin, end, spread) = paper(1, 1, 1.2)
    most = symmetric(trajectories.in_HW, trajectories.out_HW)
    image = None
    for panel, name, map_HW in (
        (begin, "In, one sample", trajectories.in_HW),
        (end, "Out, the same sample", trajectories.out_HW),
    ):
        image = panel.imshow(map_HW, origin="lower", cmap=_ENERGY, vmin=-most, vmax=most)
        panel.set_title(name, fontsize=10)
        panel.set_xlabel("x", fontsize=9)
        whole_numbers(panel)
    begin.set_ylabel("y", fontsize=9)
    if image is not None:
        bar = figure.colorbar(image, ax=[begin, end], shrink=0.85)
        bar.set_label("energy", fontsize=8)
        bar.ax.tick_params(labelsize=7)
    reach = symmetric(trajectories.in_BS, trajectories.out_BS)
    reported: list[str] = []
    for name, values, look in (
        ("in", trajectories.in_BS, {"color": BLUE, "alpha": 0.5}),
        ("out", trajectories.out_BS, {"color": RED, "histtype": "step", "linewidth": 1.6}),
    ):
        finite = values[np.isfinite(values)]
        spread.hist(finite, bins=40, range=(-reach, reach), label=name, **look)
        reported.append(f"{finite.std() if finite.size else np.nan:.3g} {name}")
    spread.set_title(f"All cells of {_samples(trajectories)}", fontsize=10)
    spread.set_xlabel("energy", fontsize=9)
    spread.set_ylabel("cells", fontsize=9)
    spread.legend(fontsize=8, frameon=False)
    caption = (
        "Energy on the surface before and after the lattice "
        f"(standard deviation {', '.join(reported)})"
        ": two heaps of the same width mean that energy is neither lost nor running away."
    )
    return Drawn("energy", "Energy in and out", caption, figure)


def _starts(trajectories: Trajectories) -> Floats:
    """Where each flow began: its first known place."""
    known_TN = np.isfinite(trajectories.place_TN3).all(-1)
    first_N = known_TN.argmax(0)
    return trajectories.place_TN3[first_N, np.arange(len(first_N))]


def _spread(indices: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """So many of these at most, evenly taken."""
    if len(indices) <= most:
        return indices
    return indices[np.linspace(0, len(indices) - 1, most).round().astype(np.intp)]


def _cells(panel: Axes, width: int, height: int) -> None:
    panel.set_xlim(-0.5, width - 0.5)
    panel.set_ylim(-0.5, height - 0.5)
    panel.set_aspect("equal")
    whole_numbers(panel)
    panel.set_xlabel("x", fontsize=9)
    panel.set_ylabel("y", fontsize=9)


def _samples(trajectories: Trajectories) -> str:
    return f"{trajectories.samples} samples" if trajectories.samples > 1 else "one sample"
