"""A chart as inline SVG that fits any width: only the curves are stretched, never the text.

The outer ``svg`` has no ``viewBox``, so that its text keeps its size and percentages follow
the width of the page; the curves lie in an inner one that is stretched to fill it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .axes import Axis, step_ticks
from .curves import Values, condense, spread
from .elements import (
    Child,
    Html,
    join,
    pixels,
    tag,
)

WIDTH, HEIGHT = 1000, 200
COLUMNS = 600
_MARKS = 200
# Few enough that each point can be seen as one.
_DOTS = 40


@dataclass(frozen=True, kw_only=True, eq=False)
class ChartLine:
    """One line of a chart; ``style`` is a class of the style sheet."""

    name: str
    style: str
    x: Values
    y: Values


@dataclass(frozen=True, kw_only=True, eq=False)
class StepMarks:
    """Steps that are pointed out: ``shape`` is skip, scaler, bad, back or join, a form each."""

    name: str
    shape: str
    x: Values


@dataclass(frozen=True, kw_only=True, eq=False)
class Chart:
    """Everything drawn in one figure. Stacked curves stand on the ones before them."""

    key: str
    title: str
    caption: str
    """The chart in words, for those who do not see it."""
    x: Axis
    y: Axis
    curves: Sequence[ChartLine]
    marks: Sequence[StepMarks] = ()
    stacked: bool = False
    columns: int = COLUMNS

    def draw(self, *, titled: bool = True) -> Html:
        """The figure: title, picture, legend, words; ``titled`` unless a heading says the same."""
        unit = self.y.unit
        return tag(
            "figure",
            tag("figcaption", tag("h3", self.title, id=self.key)) if titled else None,
            self._picture(),
            self._legend(),
            tag("p", self.caption, class_="note"),
            class_="chart",
            data_x0=repr(self.x.low), data_x1=repr(self.x.high),
            data_y0=repr(self.y.low), data_y1=repr(self.y.high),
            data_log=self.y.log, data_size=repr(unit.size), data_suffix=unit.suffix,
            data_stacked=self.stacked,
        )  # fmt: skip

    def _picture(self) -> Html:
        title, desc = f"{self.key}-title", f"{self.key}-desc"
        curves = list(map(self._line, self.curves))
        # The tallest of a stack is drawn first, so that each covers only what stands on it.
        plot = tag(
            "svg", reversed(curves) if self.stacked else curves, class_="plot",
            width="100%", height=HEIGHT,
            viewBox=f"0 0 {WIDTH} {HEIGHT}", preserveAspectRatio="none",
        )  # fmt: skip
        return tag(
            "svg",
            tag("title", self.title, id=title),
            tag("desc", self.caption, id=desc),
            self._grid(), plot, self._dots(), map(self._marks, self.marks),
            class_="frame", role="img", aria_labelledby=title, aria_describedby=desc,
            height=HEIGHT,
        )  # fmt: skip

    def _grid(self) -> list[Html]:
        parts: list[Html] = []
        for place, label in self.y.ticks():
            y = pixels((1 - place) * HEIGHT)
            parts.append(tag("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
            parts.append(tag("text", label, x="-8", y=y, dy="0.32em", text_anchor="end"))
        for place, label in step_ticks(self.x):
            # Labels at the edges lean inwards: nothing of them leaves the page.
            anchor = "end" if place > 0.97 else "start" if place < 0.03 else "middle"
            parts.append(
                tag("text", label, x=f"{pixels(place * 100)}%", y=HEIGHT + 18, text_anchor=anchor)
            )
        parts.append(tag("text", "step", x="-8", y=HEIGHT + 18, text_anchor="end"))
        base = tag("line", x1="0", x2="100%", y1=HEIGHT, y2=HEIGHT, class_="axis")
        return [*parts, base]

    def _line(self, curve: ChartLine) -> Html:
        drawn = condense(curve.x, curve.y, self.columns)
        path = self._path(drawn.x, drawn.y)
        if drawn.middle is None:
            if self.stacked and path:
                base = pixels((1 - float(self.y.place(np.zeros(1))[0])) * HEIGHT)
                left, right = (pixels(x) for x in self.x.place(drawn.x[[0, -1]]) * WIDTH)
                path += f"L{right} {base}L{left} {base}Z"
            return tag("path", d=path, class_=curve.style, data_name=curve.name)
        # More points than pixels: the extremes as a pale band, the medians as the line.
        middle = self._path(*drawn.middle)
        return join(
            tag("path", d=path, class_=f"{curve.style} band"),
            tag("path", d=middle, class_=curve.style, data_name=curve.name),
        )

    def _path(self, x: Values, y: Values) -> str:
        return _path(self.x.place(x) * WIDTH, (1 - self.y.place(y)) * HEIGHT)

    def _dots(self) -> list[Html]:
        dots: list[Html] = []
        for curve in () if self.stacked else self.curves:
            known = np.isfinite(curve.y)
            if 0 < known.sum() <= _DOTS:
                across = self.x.place(curve.x[known]) * 100
                down = (1 - self.y.place(curve.y[known])) * HEIGHT
                dots += [
                    tag("circle", cx=f"{pixels(a)}%", cy=pixels(d), r="2.5", class_=curve.style)
                    for a, d in zip(across, down, strict=True)
                ]
        return dots

    def _marks(self, marks: StepMarks) -> list[Html]:
        places = spread(marks.x, self.x.low, self.x.high, _MARKS)
        y = 0 if marks.shape != "bad" else HEIGHT
        return [
            tag("use", href=f"#mark-{marks.shape}", x=f"{pixels(place * 100)}%", y=y)
            for place in places.tolist()
        ]

    def _legend(self) -> Html | None:
        entries: list[Child] = [
            tag("li", key(curve.style), curve.name)
            for curve in self.curves
            if len(self.curves) > 1 or any(len(marks.x) for marks in self.marks)
        ]
        entries += [
            tag("li", _mark_key(marks.shape), marks.name) for marks in self.marks if len(marks.x)
        ]
        if any(len(curve.x) > 2 * self.columns for curve in self.curves):
            entries.append(tag("li", "line: median, pale: lowest to highest value of each pixel"))
        return tag("ul", entries, class_="legend") if entries else None


def key(style: str) -> Html:
    """The little sign before a name in a legend."""
    path = tag("path", d="M0 6H22", class_=style)
    return tag("svg", path, class_="key", width="22", height="12", aria_hidden="true")


def _mark_key(shape: str) -> Html:
    if shape == "join":
        line = tag("path", d="M11 0V12", class_="mark-join")
        return tag("svg", line, class_="key", width="22", height="12", aria_hidden="true")
    use = tag("use", href=f"#mark-{shape}", x="11", y="1" if shape != "bad" else "11")
    return tag("svg", use, class_="key", width="22", height="12", aria_hidden="true")


def mark_shapes() -> Html:
    """The shapes of the marks, once per page."""
    shapes = {
        "skip": "M-4.5 0H4.5L0 8Z",
        "scaler": "M-3.5 0H3.5V7H-3.5Z",
        "bad": "M-4-9L4-1M4-9L-4-1",
        "back": "M4 0V9L-5 4.5Z",
        "join": f"M0 0V{HEIGHT}",
    }
    return tag(
        "svg",
        tag("defs", [
            tag("path", d=d, id=f"mark-{name}", class_=f"mark-{name}") for name, d in shapes.items()
        ]),
        width="0", height="0", aria_hidden="true", class_="shapes",
    )  # fmt: skip


def _path(across: Values, down: Values) -> str:
    """Lines through the points; a gap in the values is a gap in the line."""
    parts: list[str] = []
    known = np.isfinite(down)
    begins = known & ~np.concatenate([[False], known[:-1]])
    alone = begins & ~np.concatenate([known[1:], [False]])
    for i in np.flatnonzero(known).tolist():
        point = f"{pixels(across[i])} {pixels(down[i])}"
        parts.append(f"{'M' if begins[i] else 'L'}{point}")
        if alone[i]:
            # A line of no length, which its round ends make a dot.
            parts.append(f"L{point}")
    return "".join(parts)
