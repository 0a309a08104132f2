"""HTML page: verdict, findings, layers around an incident, plots, and the facts behind them.

Pure functions of what was recorded. The page loads nothing and sends nothing: its policy
allows the one style sheet and the one script in it, by their digests, and pictures that are part
of it.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable
from importlib.resources import files

from ... import __version__
from .. import words
from ..environment import environment_of, guard_cost_words, lane_notes
from ..facts import groups_to_show
from ..first_layer import stories
from ..record import Record
from ..updates import updates_of
from ..verdict import verdict_of
from .chart import mark_shapes
from .elements import (
    Child,
    Html,
    join,
    tag,
)
from .findings import finding_html
from .heatmap import story_html, updates_html
from .pictures import picture_html, pictures_in
from .plots import COARSE, plots_of

# Further processes with plots of their own; the rest is counted, in the table of processes.
_LANES = 7
_SYMBOLS = {
    "good": "M5 12.5l4.5 4.5L19 7.5",
    "info": "M12 7v6l4 2.5",
    "warn": "M12 6.5v7M12 17v.5",
    "bad": "M7.5 7.5l9 9M16.5 7.5l-9 9",
}


def page(record: Record) -> str:
    """The whole report as one HTML file."""
    style, script = _own("page.css"), _own("page.js")
    name = str(record.summary.meta.get("script") or record.summary.path.name)
    verdict = verdict_of(record.summary)
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", f"{verdict.word}: {name}"),
        tag("style", style),
    )
    body = tag(
        "body",
        mark_shapes(),
        _verdict(record, name),
        tag("main", *_sections(record)),
        tag("footer", tag("p", f"Made by holdfast {__version__} from {record.summary.path}")),
        tag("script", script),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _sections(record: Record) -> Iterable[Html | None]:
    yield from (
        _findings(record),
        _saved(record),
        _stories(record),
        _updates(record),
        _plots(record),
        _other_lanes(record),
        _pictures(record),
        _deeds(record),
        _notes(record),
        _environment(record),
    )


def _verdict(record: Record, name: str) -> Html:
    summary, verdict = record.summary, verdict_of(record.summary)
    figures = {
        "steps": words.number(summary.steps),
        "skipped": words.number(summary.skipped),
        "rollbacks": words.number(summary.rollbacks) if summary.rollbacks else "",
        "findings": words.number(len(summary.findings)),
        "ranks": str(record.ranks) if record.ranks > 1 else "",
        "loss": _change(summary.first_loss, summary.last_loss),
        "time": words.duration(summary.seconds) if summary.seconds else "",
        "guard cost": "" if math.isnan(summary.guard_cost) else words.percent(summary.guard_cost),
    }
    shown = [tag("div", tag("dt", k), tag("dd", v)) for k, v in figures.items() if v]
    symbol = tag(
        "svg", tag("circle", cx="12", cy="12", r="11"), tag("path", d=_SYMBOLS[verdict.tone]),
        viewBox="0 0 24 24", class_="symbol", aria_hidden="true",
    )  # fmt: skip
    damage = [tag("p", text, class_="damage") for text in summary.unreadable]
    return tag(
        "header",
        tag("p", name, class_="script"),
        tag("h1", symbol, verdict.word),
        tag("p", verdict.sentence, class_="sentence"),
        tag("dl", shown, class_="figures"),
        damage,
        class_=f"verdict {verdict.tone}",
    )


def _change(first: float, last: float) -> str:
    known = not (math.isnan(first) or math.isnan(last))
    return f"{words.figure(first)} → {words.figure(last)}" if known else ""


def _section(title: str, *children: Child, key: str) -> Html:
    return tag("section", tag("h2", title, id=key), *children, aria_labelledby=key)


def _findings(record: Record) -> Html | None:
    chosen, left_out = groups_to_show(record.summary.finding_groups)
    if not chosen:
        return None
    several = record.ranks > 1
    articles = [
        finding_html(group, number, several_ranks=several) for number, group in enumerate(chosen, 1)
    ]
    more = [
        tag("p", f"{code}: {words.plural(count, 'more finding')} of this kind; "
            "holdfast report --format json lists all of them.", class_="note")
        for code, count in left_out.items()
    ]  # fmt: skip
    title = words.plural(len(record.summary.findings), "finding")
    return _section(title.capitalize(), articles, more, key="findings")


def _saved(record: Record) -> Html | None:
    """What is left of a run that ended early, and the lines that load it."""
    saved = record.summary.saved_state
    if saved is None:
        return None
    failed = f"The state after the last complete step was not saved: {saved.failed}"
    return _section(
        "Saved state",
        tag("p", failed) if saved.failed else None,
        tag("p", tag("code", saved.path), f" ({saved.what})") if saved.path else None,
        tag("pre", tag("code", *(tag("span", line) for line in saved.code)))
        if saved.code
        else None,
        key="saved-state",
    )


def _stories(record: Record) -> Html | None:
    found = [story_html(story, several_ranks=record.ranks > 1) for story in stories(record)]
    if not found:
        return None
    more = tag("details", tag("summary", "Other incidents"), found[1:]) if found[1:] else None
    return _section("The layers around it", found[0], more, key="layers")


def _updates(record: Record) -> Html | None:
    found = updates_of(record.shown[0]) if record.lanes else []
    shown = [updates_html(updates, several=len(found) > 1) for updates in found]
    return _section("How far the layers moved", shown, key="updates") if shown else None


def _plots(record: Record) -> Html:
    if not record.summary.steps:
        return _section("Plots", tag("p", "No step was recorded."), key="plots")
    lead, *others = record.shown
    charts = list(plots_of(lead, others[:_LANES]))
    note = None
    if not charts:
        note = tag("p", "No loss, gradient, time or memory was recorded.")
    elif not any(chart.key.startswith("loss-") for chart in charts):
        note = tag("p", "No finite loss was recorded.")
    title = f"Plots, {lead.lane}" if others else "Plots"
    return _section(title, note, [chart.draw() for chart in charts], key="plots")


def _other_lanes(record: Record) -> Html | None:
    """The plots of further processes, folded."""
    folded: list[Html] = []
    for lane in record.shown[1 : 1 + _LANES]:
        charts = [chart.draw() for chart in plots_of(lane, columns=COARSE, layers=False)]
        if charts:
            folded.append(tag("details", tag("summary", f"Plots, {lane.lane}"), charts))
    hidden = len(record.lanes) - 1 - _LANES
    if hidden > 0:
        folded.append(
            tag("p", f"{words.plural(hidden, 'further process', 'es')} without plots here.")
        )
    return tag("section", folded, aria_label="Plots of other processes") if folded else None


def _pictures(record: Record) -> Html | None:
    """What the task drew of its model."""
    shown = [picture_html(picture) for picture in pictures_in(record.summary.path)]
    return _section("Pictures", shown, key="pictures") if shown else None


def _deeds(record: Record) -> Html:
    actions_taken = record.summary.actions_taken
    if not actions_taken:
        nothing = "It recorded, and changed nothing."
        return _section("What holdfast did", tag("p", nothing), key="actions")
    head = tag("tr", [tag("th", label, scope="col") for label in ("what", "when", "how or why")])
    rows = [
        tag("tr", tag("th", d.what, scope="row"), tag("td", d.when), tag("td", d.why))
        for d in actions_taken
    ]
    table = tag("table", tag("thead", head), tag("tbody", rows))
    return _section("What holdfast did", tag("div", table, class_="scroll actions"), key="actions")


def _notes(record: Record) -> Html | None:
    groups = {
        "Policy": record.summary.policy,
        "Not covered": record.summary.not_covered,
        "Errors inside holdfast (training went on)": record.summary.errors,
        "Processes": lane_notes(record.summary),
    }
    shown = [
        join(tag("h3", title), tag("ul", [tag("li", words.clip(note, 600)) for note in notes[:40]]))
        for title, notes in groups.items()
        if notes
    ]
    return _section("Worth knowing", shown, key="notes") if shown else None


def _environment(record: Record) -> Html:
    rows = [
        join(tag("dt", label), tag("dd", text))
        for label, text in environment_of(record.summary).items()
    ]
    cost = tag("p", guard_cost_words(record.summary), class_="note")
    return _section("The run", tag("dl", rows), cost, key="run")


def _own(name: str) -> Html:
    return Html(files(__package__ or "").joinpath(name).read_text(encoding="utf-8"))


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
