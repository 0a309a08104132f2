"""Heat map of the layers around an incident, with a sign on non-finite values.

A table, not a picture: a screen reader can read every cell.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from .. import words
from ..first_layer import Story
from ..updates import USUAL, LayerUpdates, Update
from .elements import (
    Child,
    Html,
    join,
    pixels,
    tag,
)

SHADES = 9
_NAME = 120


def story_html(story: Story, *, several_ranks: bool) -> Html:
    """The description, then the heat map."""
    who = f", rank {story.rank}" if several_ranks else ""
    hidden = story.total - len(story.layers)
    left_out = (
        tag("p", f"{words.plural(hidden, 'layer')} of {words.number(story.total)} not shown: they "
            "stood out neither by size nor by growth.", class_="note")
        if hidden else None
    )  # fmt: skip
    return tag(
        "section",
        tag("h3", f"Step {words.number(story.step)}{who}: {story.finding.code}"),
        tag("p", " ".join(story.sentences)),
        _map(story),
        left_out,
        class_="story",
    )


def _map(story: Story) -> Html:
    known = np.isfinite(story.norms) & (story.norms > 0)
    logs = np.log10(story.norms[known]) if known.any() else np.zeros(1)
    low, high = float(logs.min()), float(logs.max())
    head = tag("tr", tag("th", "layer", scope="col"), [_step(story, step) for step in story.steps])
    prefix = common_prefix(story.layers)
    rows = [
        tag(
            "tr",
            layer_header(layer, first=layer == story.first, prefix=prefix),
            [_cell(story, row, at, low, high) for at in range(len(story.steps))],
        )
        for row, layer in enumerate(story.layers)
    ]
    caption = (
        f"Gradient norm of each layer, from {words.number(story.steps[0] - story.step)} to "
        f"+{words.number(story.steps[-1] - story.step)} steps around step "
        f"{words.number(story.step)}"
    )
    caption += f"; all names begin with {prefix}" if prefix else ""
    table = tag("table", tag("caption", caption), tag("thead", head), tag("tbody", rows))
    return tag("div", table, _legend(low, high), class_="heat")


def _step(story: Story, step: int) -> Html:
    away = step - story.step
    # Every other number: two digits with a sign do not fit into a cell of a narrow screen.
    label = f"{away:+d}".replace("-", "\N{MINUS SIGN}") if away else "0"
    name = tag("span", label, class_="unseen") if away % 2 else label
    return tag("th", name, scope="col", title=f"step {step}", class_=None if away else "now")


def common_prefix(names: Sequence[str]) -> str:
    """Common prefix of all dotted names, up to a dot; the heat map omits it.

    >>> common_prefix(["model.blocks.1.up", "model.blocks.11.up"])
    'model.blocks.'
    """
    if len(names) < 2:
        return ""
    split = [name.split(".")[:-1] for name in names]
    shared = itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*split, strict=False))
    return "".join(f"{parts[0]}." for parts in shared)


def layer_header(name: str, *, first: bool = False, prefix: str = "") -> Html:
    """The header of a layer's row, cut at its front where there is little room."""
    shown = tag("bdi", words.clip(name.removeprefix(prefix), _NAME), dir="ltr")
    mark = tag("strong", " first", class_="first") if first else None
    return tag("th", tag("span", shown, class_="name"), mark, scope="row", title=name)


def _cell(story: Story, row: int, at: int, low: float, high: float) -> Html:
    value = float(story.norms[row, at])
    if story.missing[row, at]:
        return tag("td", "·", class_="none", title="no gradient")
    if not math.isfinite(value):
        sign, name = ("×", "NaN") if math.isnan(value) else ("∞", "inf")
        return tag("td", sign, class_="bad", title=name)
    place = (math.log10(value) - low) / ((high - low) or 1.0) if value > 0 else 0.0
    return tag("td", class_=f"h{round(place * (SHADES - 1))}", title=words.figure(value))


def _legend(low: float, high: float) -> Html:
    shades = [tag("i", class_=f"shade h{i}") for i in range(SHADES)]
    signs: list[Child] = [
        tag("li", words.figure(10**low), " ", shades, " ", words.figure(10**high), " (log)"),
        tag("li", tag("i", "×", class_="shade bad"), " NaN"),
        tag("li", tag("i", "∞", class_="shade bad"), " infinite"),
        tag("li", tag("i", "·", class_="shade none"), " no gradient"),
    ]
    return tag("ul", signs, class_="legend")


def updates_html(updates: LayerUpdates, *, several: bool) -> Html:
    """Update sizes of one optimizer: a bar from smallest to largest for each layer."""
    values = [v for u in updates.shown for v in (u.low, u.high) if v > 0]
    low, high = math.log10(min([USUAL, *values])), math.log10(max([USUAL, *values]))
    rows = [
        tag(
            "tr",
            layer_header(update.layer),
            tag("td", _bar(update, low, (high - low) or 1.0), class_="bar"),
            tag("td", words.figure(update.median), class_="num"),
            tag("td", words.figure(update.high), class_="num"),
            tag("td", words.number(update.step), class_="num"),
        )
        for update in updates.shown
    ]
    columns = ("layer", "smallest to largest (log)", "median", "largest", "at step")
    head = tag("tr", [tag("th", column, scope="col") for column in columns])
    hidden = updates.total - len(updates.shown) - len(updates.still)
    notes = [
        f"Change of the weights in one step over their norm, on "
        f"{words.plural(updates.samples, 'sampled step')}. The dashed line is 0.001, a rule of "
        "thumb for a healthy step and no limit."
    ]
    if hidden > 0:
        notes.append(f"{words.plural(hidden, 'layer')} in between not shown.")
    if updates.still:
        names = [words.clip(name, 60) for name in updates.still[:6]]
        more = [f"{len(updates.still) - 6} more"] if len(updates.still) > 6 else []
        notes.append(f"Never moved: {words.listed([*names, *more])}.")
    title = f"Optimizer {updates.opt}" if several else ""
    return join(
        tag("h3", title) if title else None,
        tag("p", " ".join(notes)),
        tag("div", tag("table", tag("thead", head), tag("tbody", rows)), class_="scroll updates")
        if rows
        else None,
    )


def _bar(update: Update, low: float, span: float) -> Html:
    def place(value: float) -> float:
        return (math.log10(value) - low) / span * 100 if value > 0 else 0.0

    left, middle, right = place(update.low), place(update.median), place(update.high)
    typical = pixels(place(USUAL))
    return tag(
        "svg",
        tag("line", x1=f"{typical}%", x2=f"{typical}%", y1="0", y2="16", class_="typical"),
        tag("line", x1=f"{pixels(left)}%", x2=f"{pixels(right)}%", y1="8", y2="8", class_="range"),
        tag("circle", cx=f"{pixels(middle)}%", cy="8", r="3.5", class_="median"),
        width="100%", height="16", aria_hidden="true",
    )  # fmt: skip
