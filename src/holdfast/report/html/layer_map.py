"""Heat map of the layers over the whole run: a picture for the eye, a folded table for numbers."""

from __future__ import annotations

import math

import numpy as np

from .. import words
from ..layer_map import LayerMap
from ..layers import Norms
from .axes import Axis, step_ticks
from .elements import Html, pixels, tag
from .heatmap import SHADES, common_prefix, layer_header

ROW = 16
"""Height of a layer in pixels; the style sheet has the same."""
# Times by which a norm must have changed to be pointed out in words; a guess.
_CHANGED = 3.0
# Red is as wide as its share of the steps, but not thinner than this part of a stretch: to be seen.
_THINNEST = 0.1


def layer_map_html(layers: LayerMap, axis: Axis, lane: str, *, several: bool) -> Html:
    """The figure: title, names beside the map, legend, words, and the numbers behind it."""
    of = f", optimizer {layers.opt}" if several else ""
    title, caption = f"Gradient norm by layer{of}", _words(layers)
    known = layers.norms[np.isfinite(layers.norms) & (layers.norms > 0)]
    logs = np.log10(known) if known.size else np.zeros(1)
    low, high = float(logs.min()), float(logs.max())
    prefix = common_prefix(layers.names)
    names = [
        tag("li", tag("bdi", words.clip(name.removeprefix(prefix), 60), dir="ltr"), title=name)
        for name in layers.names
    ]
    key = f"layers{layers.opt}-{lane}"
    picture = [
        tag("ul", names, class_="names", aria_hidden="true"),
        _picture(layers, axis, low, high, f"{title}. {caption}"),
    ]
    beyond = f" All names begin with {prefix}" if prefix else ""
    return tag(
        "figure",
        tag("figcaption", tag("h3", title, id=key)),
        # One measurement is no course.
        tag("div", picture, class_="map") if layers.samples > 1 else None,
        _legend(layers, low, high) if layers.samples > 1 else None,
        tag("p", f"{caption}{beyond}", class_="note"),
        tag("details", tag("summary", "The layers in numbers"), _table(layers)),
        class_="layers",
    )


def _picture(layers: LayerMap, axis: Axis, low: float, high: float, label: str) -> Html:
    rows, columns = layers.norms.shape
    height = rows * ROW
    ticks = [
        tag("text", text, x=f"{pixels(place * 100)}%", y=height + 15,
            text_anchor="end" if place > 0.97 else "start" if place < 0.03 else "middle")
        for place, text in step_ticks(axis)
    ]  # fmt: skip
    cells = tag(
        "svg", _cells(layers, low, high), class_="cells", width="100%", height=height,
        viewBox=f"0 0 {columns} {rows}", preserveAspectRatio="none", shape_rendering="crispEdges",
    )  # fmt: skip
    unit = tag("text", "step", x="-8", y=height + 15, text_anchor="end")
    return tag(
        "svg", cells, ticks, unit, class_="frame", role="img", aria_label=label, height=height
    )


def _cells(layers: LayerMap, low: float, high: float) -> list[Html]:
    """One path for all cells of a shade; neighbours of one shade are one rectangle."""
    shades = _shades(layers.norms, low, high)
    parts: dict[int, list[str]] = {}
    for row, line in enumerate(shades):
        ends = np.flatnonzero(np.diff(line, prepend=-2, append=-2))
        for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            if (shade := int(line[first])) >= 0:
                width = last - first
                parts.setdefault(shade, []).append(f"M{first} {row}h{width}v1h-{width}z")
    paths = [
        tag("path", d="".join(found), class_=f"c{shade}") for shade, found in sorted(parts.items())
    ]
    bars = "".join(
        f"M{at} {row}h{pixels(width)}v1h-{pixels(width)}z"
        for row, at in np.argwhere(layers.bad > 0).tolist()
        for width in [max(_THINNEST, float(layers.bad[row, at]))]
    )
    return [*paths, tag("path", d=bars, class_="cell-bad")] if bars else paths


def _shades(norms: Norms, low: float, high: float) -> Norms:
    """The shade of every cell; -1 where nothing was measured."""
    with np.errstate(divide="ignore", invalid="ignore"):
        place = (np.log10(norms) - low) / ((high - low) or 1.0)
    place = np.where(norms == 0, 0.0, place)
    return np.where(np.isnan(norms), -1, np.round(np.clip(place, 0, 1) * (SHADES - 1)))


def _legend(layers: LayerMap, low: float, high: float) -> Html:
    shades = [tag("i", class_=f"shade h{i}") for i in range(SHADES)]
    bad = tag("li", tag("i", class_="shade bad"), " NaN or infinite") if layers.bad.any() else None
    scale = tag("li", words.figure(10**low), " ", shades, " ", words.figure(10**high), " (log)")
    return tag("ul", scale, bad, class_="legend")


def _words(layers: LayerMap) -> str:
    """What is shown, and the layers whose norm changed most."""
    shown = len(layers.names)
    which = f"All {words.plural(shown, 'layer')}"
    if shown < layers.total:
        which = f"{shown} of {layers.total} layers, the largest, the smallest and the most changed"
    if layers.samples < 2:
        return f"{which}, in the order of the model, measured on one step only."
    said = [
        f"{which}, in the order of the model, measured on "
        f"{words.plural(layers.samples, 'step')}; until the next measurement the last one is shown"
    ]
    if layers.bad.any():
        said.append("Red is as wide as the share of the steps that were bad")
    changed = [(n, t) for n, t in layers.changes if max(t, 1 / t) >= _CHANGED][:3]
    if changed:
        reported = [
            f"{words.clip(name, 60)} {'grew' if times > 1 else 'fell'} to "
            f"{words.figure(float(f'{times:.2g}'))} times its first value"
            for name, times in changed
        ]
        said.append(words.listed(reported))
    return ". ".join(said) + "."


def _table(layers: LayerMap) -> Html:
    head = tag(
        "tr", [tag("th", c, scope="col") for c in ("layer", "first", "median", "largest", "last")]
    )
    values = zip(layers.first, layers.typical, layers.largest, layers.last, strict=True)
    rows = [
        tag("tr", layer_header(name), [tag("td", _figure(float(v)), class_="num") for v in line])
        for name, line in zip(layers.names, values, strict=True)
    ]
    table = tag("table", tag("thead", head), tag("tbody", rows))
    return tag("div", table, class_="scroll numbers", tabindex="0", role="region",
               aria_label="Gradient norms of the layers")  # fmt: skip


def _figure(value: float) -> str:
    return "–" if math.isnan(value) else words.figure(value)
