"""Two runs on one page: what changed in percent, and their curves laid over each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ...run import Rows
from ...types import Finding, place_words
from .. import words
from ..columns import column, of_first_optimizer
from ..compare import RunComparison, change_words, figure_name, figure_words
from ..losses import LossCurve, rows_of
from ..record import RunRecord
from ..run_curves import RunCurves
from .axes import step_axis, value_axis
from .chart import Chart, ChartLine
from .curves import Values
from .document import document, symbol
from .elements import Child, Html, tag

# Steps over which step times are reported: single ones jump.
_SMOOTH = 9


def overlay_page(found: RunComparison, before: RunRecord, after: RunRecord) -> str:
    """The comparison as one HTML file; ``before`` is A, ``after`` is B."""
    tone = "bad" if found.worse else "good" if found.judged else "info"
    word = found.verdict.capitalize()
    reasons = [tag("li", reason) for reason in found.reasons]
    header = tag(
        "header",
        tag("p", f"A: {found.before.path}", tag("br"), f"B: {found.after.path}", class_="script"),
        tag("h1", symbol(tone), word),
        tag("p", _sentence(found), class_="sentence"),
        tag("ul", reasons, class_="reasons") if reasons else None,
        class_=f"verdict {tone}",
    )
    main = tag(
        "main",
        _curves(found, before, after),
        _section("In numbers", _table(found), key="numbers"),
        _findings(found),
    )
    return document(
        f"{word}: A and B", header, main, f"from {found.before.path} (A) and {found.after.path} (B)"
    )


def _sentence(found: RunComparison) -> str:
    if not found.judged:
        return words.capital(f"{found.differs}.")
    judged = [figure for figure in found.figures if figure.verdict in ("worse", "better")]
    reported = [
        f"{figure_name(found, figure)} {change_words(figure)} ({figure.verdict})"
        for figure in judged
    ]
    differs = f"{words.capital(found.differs)}. " if found.differs else ""
    if not reported:
        return f"{differs}B is within the limits of A in all that was judged."
    return differs + words.capital(f"{words.listed(reported)}, from A to B.")


def _table(found: RunComparison) -> Html:
    head = tag(
        "tr", [tag("th", name, scope="col") for name in ("what", "A", "B", "change", "verdict")]
    )
    rows = [
        tag(
            "tr",
            tag("th", figure_name(found, figure), scope="row"),
            [
                tag("td", figure_words(figure.name, value), class_="num")
                for value in (figure.before, figure.after)
            ],
            tag("td", change_words(figure), class_=f"num {figure.verdict}".strip()),
            tag("td", figure.verdict),
        )
        for figure in found.figures
    ]
    table = tag("table", tag("thead", head), tag("tbody", rows))
    return tag("div", table, class_="scroll", tabindex="0")


def _findings(found: RunComparison) -> Html | None:
    rows: list[Child] = []
    for title, findings in (("only in B", found.new), ("only in A", found.gone)):
        rows += [
            tag("li", f"{title}: ", tag("strong", f.code), f" {_reported(f)}") for f in findings
        ]
    shown = tag("ul", rows) if rows else tag("p", "Both runs have the same findings.")
    return _section("Findings", shown, key="findings")


def _reported(finding: Finding) -> str:
    where = f" at {place_words(finding.file, finding.line)}" if finding.line else ""
    return f"{finding.name.replace('_', ' ')}{where}, {finding.severity.word}"


def _curves(found: RunComparison, before: RunRecord, after: RunRecord) -> Html:
    pairs = [
        record.run_curves_of_ranks[0] for record in (before, after) if record.run_curves_of_ranks
    ]
    charts = [chart.draw() for chart in _charts(pairs, found)] if len(pairs) == 2 else []
    none = tag("p", "No step was recorded.") if not charts else None
    return _section("A and B over each other", none, charts, key="curves")


def _charts(pair: Sequence[RunCurves], found: RunComparison) -> Iterator[Chart]:
    comparable = all(figure.comparable for figure in found.figures)
    loss = _as_in_table(found, "loss", "median of the last tenth of the steps that both have")
    times = _as_in_table(found, "step_time", "median of all steps but the first few")
    device, host = (_as_in_table(found, n, "peak of each run") for n in ("mem_allocated", "rss"))
    yield from filter(
        None,
        (
            _chart(pair, "loss", "Loss", _loss, words.figure, losses=found.losses,
                   caption=loss if comparable else found.differs),
            _chart(pair, "grad", "Gradient norm", _norm, words.figure),
            _chart(pair, "time", "Time of a step", _seconds, words.duration, kind="seconds",
                   caption=times),
            _chart(pair, "device", "Memory of the device", _memory("mem_allocated"), words.size,
                   kind="bytes", caption=device),
            _chart(pair, "host", "Memory of the host", _memory("rss"), words.size, kind="bytes",
                   caption=host),
        ),
    )  # fmt: skip


def _chart(
    pair: Sequence[RunCurves], key: str, title: str, values: Callable[[Rows], Values],
    reported: Callable[[float], str], *, kind: str = "", caption: str = "",
    losses: Sequence[LossCurve] | None = None,
) -> Chart | None:  # fmt: skip
    curves: list[ChartLine] = []
    ends: list[float] = []
    for i, (name, style, run_curves) in enumerate(zip("AB", ("s0", "s1"), pair, strict=True)):
        rows = run_curves.lane.steps[np.argsort(run_curves.lane.steps["step"], kind="stable")]
        rows = rows_of(rows, losses[i]) if losses else of_first_optimizer(rows)
        ends += [float(step) for step in rows["step"][[0, -1]]] if len(rows) else []
        y = values(rows)
        seen = ~np.isnan(y)
        curves.append(
            ChartLine(name=name, style=style, x=rows["step"][seen].astype(np.float64), y=y[seen])
        )
    scale = value_axis(
        (c.y for c in curves), kind=kind, zero=bool(kind), log=False if kind else None
    )
    if scale is None or not ends:
        return None
    return Chart(
        key=f"{key}-compared",
        title=f"{title} (log scale)" if scale.log else title,
        caption=caption or _words(curves, reported),
        x=step_axis(min(ends), max(ends)),
        y=scale,
        curves=curves,
    )


def _as_in_table(found: RunComparison, name: str, of: str) -> str:
    """The numbers of the table, so that the page has one percentage for one thing."""
    figure = next((figure for figure in found.figures if figure.name == name), None)
    if figure is None or math.isnan(figure.change):
        return ""
    a, b = (figure_words(name, value) for value in (figure.before, figure.after))
    change = f" ({change_words(figure)})" if change_words(figure) else ""
    return f"A {a}, B {b}{change}: {of}."


def _words(curves: Sequence[ChartLine], reported: Callable[[float], str]) -> str:
    """Medians over the last tenth of the steps that both have, and their difference in percent."""
    a, b = curves
    common = np.intersect1d(a.x, b.x)
    last = common[-max(1, round(0.1 * len(common))) :]
    known: list[float] = []
    for curve in curves:
        near = curve.y[np.isin(curve.x, last)]
        near = near[np.isfinite(near)]
        if not near.size:
            return "The runs have no step in common on which both were measured."
        known.append(float(np.median(near)))
    share = f" ({(known[1] - known[0]) / abs(known[0]):+.1%})" if known[0] else ""
    steps = f"step{'s' * (len(last) > 1)} {words.number(int(last[0]))}"
    steps += f" to {words.number(int(last[-1]))}" if len(last) > 1 else ""
    return f"A {reported(known[0])}, B {reported(known[1])}{share}: median of {steps}."


def _loss(rows: Rows) -> Values:
    bad = column(rows, "loss_bad") > 0
    return np.where(bad, np.inf, column(rows, "loss")).astype(np.float64)


def _norm(rows: Rows) -> Values:
    bad = column(rows, "grad_bad") > 0
    return np.where(bad, np.inf, column(rows, "grad_norm")).astype(np.float64)


def _memory(name: str) -> Callable[[Rows], Values]:
    def values(rows: Rows) -> Values:
        measured = column(rows, name).astype(np.float64)
        return np.where(measured > 0, measured, np.nan)

    return values


def _seconds(rows: Rows) -> Values:
    """Seconds between steps, as medians over a few neighbours; the first ones are no steps yet."""
    times = np.full(len(rows), np.nan)
    if len(rows) > 1:
        times[1:] = np.diff(rows["time"]) / np.maximum(1, np.diff(rows["step"]))
    if len(times) <= _SMOOTH:
        return times
    windows = np.lib.stride_tricks.sliding_window_view(times[1:], _SMOOTH)
    half = _SMOOTH // 2
    times[1 + half : len(times) - half] = np.median(windows, axis=1)
    times[: 1 + half], times[len(times) - half :] = times[1 + half], times[len(times) - half - 1]
    return times


def _section(title: str, *children: Child, key: str) -> Html:
    return tag("section", tag("h2", title, id=key), *children, aria_labelledby=key)
