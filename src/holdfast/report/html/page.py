"""HTML page: verdict, loss, findings, layers around an incident, plots, the facts behind them.

Pure functions of what was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...types import Finding
from .. import words
from ..cost import cost_figure
from ..environment import environment_of, guard_cost_words, lane_notes
from ..facts import groups_to_show
from ..first_layer import stories
from ..layer_map import layer_maps
from ..memory_curves import memory_curves_of
from ..ranks import HEAD, SHOWN, rank_line
from ..record import RunRecord
from ..restarts import restarts_of
from ..run_curves import RunCurves
from ..updates import updates_of
from ..verdict import verdict_of
from .axes import step_axis
from .document import document, symbol
from .elements import (
    Child,
    Html,
    copied,
    join,
    tag,
)
from .findings import PageFacts, finding_html
from .heatmap import story_html, updates_html
from .layer_map import layer_map_html
from .pictures import picture_html, pictures_in
from .plots import COARSE, loss_change, loss_plot, plots_of

# Further processes with plots of their own; the rest is counted, in the table of processes.
_LANES = 7


def page(record: RunRecord) -> str:
    """The whole report as one HTML file."""
    name = str(record.summary.meta.get("script") or record.summary.path.name)
    return document(
        f"{verdict_of(record.summary).word}: {name}",
        _verdict(record, name),
        tag("main", *_sections(record)),
        f"from {record.summary.path}",
    )


def _sections(record: RunRecord) -> Iterable[Html | None]:
    # Of a run that died the first question is why; the loss is what led there.
    died = record.summary.ending.died
    first = (_findings, _loss) if died else (_loss, _findings)
    yield from (one(record) for one in first)
    yield from (
        _ranks(record),
        _saved(record),
        _stories(record),
        _plots(record),
        _updates(record),
        _other_lanes(record),
        _pictures(record),
        _actions_taken(record),
        _notes(record),
        _environment(record),
    )


def _verdict(record: RunRecord, name: str) -> Html:
    summary, verdict = record.summary, verdict_of(record.summary)
    restarts = len(restarts_of(summary.meta))
    figures = {
        "steps": words.number(summary.steps),
        "skipped": words.number(summary.skipped),
        "rollbacks": words.number(summary.rollbacks) if summary.rollbacks else "",
        "restarts": words.number(restarts) if restarts else "",
        "findings": words.number(len(summary.findings)),
        "ranks": str(record.ranks) if record.ranks > 1 else "",
        _loss_label(record): loss_change(record.run_curves_of_ranks[0])
        if record.run_curves_of_ranks
        else "",
        "time": words.duration(summary.seconds) if summary.seconds else "",
        "guard cost": cost_figure(summary.cost),
    }
    shown = [tag("div", tag("dt", k), tag("dd", v)) for k, v in figures.items() if v]
    damage = [tag("p", text, class_="damage") for text in summary.unreadable]
    return tag(
        "header",
        tag("p", name, class_="script"),
        tag("h1", symbol(verdict.tone), verdict.word),
        tag("p", verdict.sentence, class_="sentence"),
        tag("dl", shown, class_="figures"),
        damage,
        class_=f"verdict {verdict.tone}",
    )


def _loss_label(record: RunRecord) -> str:
    """The loss of a resumed run is reported from its first part on, the rest of its own part."""
    return (
        "loss, all parts"
        if record.run_curves_of_ranks and record.run_curves_of_ranks[0].resume_points
        else "loss"
    )


def _section(title: str, *children: Child, key: str) -> Html:
    return tag("section", tag("h2", title, id=key), *children, aria_labelledby=key)


def _findings(record: RunRecord) -> Html | None:
    chosen, left_out = groups_to_show(record.summary.finding_groups)
    if not chosen:
        return None
    known = _known(record)
    articles = [finding_html(group, number, known) for number, group in enumerate(chosen, 1)]
    more = [
        tag("p", f"{code}: {words.plural(count, 'more finding')} of this kind; "
            "holdfast report --format json lists all of them.", class_="note")
        for code, count in left_out.items()
    ]  # fmt: skip
    title = words.plural(len(record.summary.findings), "finding")
    return _section(title.capitalize(), articles, more, key="findings")


def _known(record: RunRecord) -> PageFacts:
    """What findings are shown with: the plots of the leading rank."""
    if not record.run_curves_of_ranks:
        return PageFacts(several_ranks=record.ranks > 1)
    lead = record.run_curves_of_ranks[0]
    memory = memory_curves_of(lead.lane, _of_rank(record, lead))
    drawn = [chart.key for chart in plots_of(lead)]
    plots = {
        family: next((key for key in drawn if key.startswith(kind)), "")
        for family, kind in (("MEM", "memory-"), ("TPT", "time-"))
    }
    growth = next(
        (run_curves.growth for run_curves in memory if run_curves.growth is not None), None
    )
    return PageFacts(several_ranks=record.ranks > 1, growth=growth, plots=plots)


def _of_rank(record: RunRecord, run_curves: RunCurves) -> list[Finding]:
    return [finding for finding in record.summary.findings if finding.rank == run_curves.lane.rank]


def _ranks(record: RunRecord) -> Html | None:
    """All ranks side by side; nothing where there is only one."""
    ranks = record.summary.ranks
    if not ranks:
        return None
    cells = [one.cells for one in ranks[:SHOWN]]
    known = [i for i in range(1, len(HEAD)) if any(row[i] for row in cells)]
    head = tag("tr", [tag("th", HEAD[i], scope="col") for i in (0, *known)])
    rows = [
        tag("tr", tag("th", row[0], scope="row"), [tag("td", row[i]) for i in known])
        for row in cells
    ]
    table = tag("table", tag("thead", head), tag("tbody", rows))
    more = len(ranks) - SHOWN
    return _section(
        "Ranks",
        tag("div", table, class_="scroll stats", tabindex="0"),
        tag("p", f"And {words.plural(more, 'more rank')}.") if more > 0 else None,
        tag("p", words.capital(rank_line(ranks)), class_="note"),
        key="ranks",
    )


def _saved(record: RunRecord) -> Html | None:
    """What is left of a run that ended early, and the lines that load it."""
    saved = record.summary.saved_state
    if saved is None:
        return None
    failed = f"The state after the last complete step was not saved: {saved.failed}"
    return _section(
        "Saved state",
        tag("p", failed) if saved.failed else None,
        tag("p", tag("code", saved.path), f" ({saved.what})") if saved.path else None,
        copied(saved.code, "Load it") if saved.code else None,
        copied((saved.goes_on,), "Go on from there") if saved.goes_on else None,
        tag("p", f"It {saved.goes_back}.") if saved.goes_back else None,
        tag("p", f"The run cannot be resumed by holdfast: {saved.why_not}")
        if saved.why_not
        else None,
        key="saved-state",
    )


def _stories(record: RunRecord) -> Html | None:
    found = [story_html(story, several_ranks=record.ranks > 1) for story in stories(record)]
    if not found:
        return None
    more = tag("details", tag("summary", "Other incidents"), found[1:]) if found[1:] else None
    return _section("The layers around it", found[0], more, key="layers")


def _loss(record: RunRecord) -> Html | None:
    """The loss of the leading rank, right below the verdict; nothing where there is none."""
    run_curves_of_ranks = record.run_curves_of_ranks
    chart = (
        loss_plot(run_curves_of_ranks[0], run_curves_of_ranks[1 : 1 + _LANES])
        if run_curves_of_ranks
        else None
    )
    if chart is None:
        return None
    title = (
        f"{chart.title}, {run_curves_of_ranks[0].lane.lane}"
        if len(run_curves_of_ranks) > 1
        else chart.title
    )
    before = record.summary.facts.get("resumed", "")
    missing = None
    if before and not record.earlier:
        missing = tag("p", f"This run {before}, which is not there any more.", class_="note")
    return _section(title, chart.draw(titled=False), missing, key="loss")


def _updates(record: RunRecord) -> Html | None:
    found = updates_of(record.run_curves_of_ranks[0].lane) if record.run_curves_of_ranks else []
    shown = [updates_html(updates, several=len(found) > 1) for updates in found]
    return _section("How far the layers moved", shown, key="updates") if shown else None


def _plots(record: RunRecord) -> Html:
    if not record.run_curves_of_ranks:
        return _section("Plots", tag("p", "No step was recorded."), key="plots")
    lead = record.run_curves_of_ranks[0]
    charts = list(plots_of(lead, _of_rank(record, lead)))
    note = None
    if loss_plot(lead) is None:
        known = "No finite loss was recorded." if charts else ""
        note = tag("p", known or "No loss, gradient, time or memory was recorded.")
    drawn = [chart.draw() for chart in charts]
    # The layers belong behind the norm of all gradients.
    at = next((i for i, chart in enumerate(charts) if chart.key.startswith("time-")), len(drawn))
    drawn[at:at] = _layer_maps(lead)
    title = f"Plots, {lead.lane.lane}" if len(record.run_curves_of_ranks) > 1 else "Plots"
    return _section(title, note, drawn, key="plots")


def _layer_maps(run_curves: RunCurves) -> list[Html]:
    maps = layer_maps(run_curves.lane)
    steps = run_curves.lane.steps["step"]
    axis = step_axis(float(steps.min()), float(steps.max()))
    return [layer_map_html(m, axis, run_curves.lane.lane, several=len(maps) > 1) for m in maps]


def _other_lanes(record: RunRecord) -> Html | None:
    """The plots of further processes, folded."""
    folded: list[Html] = []
    for run_curves in record.run_curves_of_ranks[1 : 1 + _LANES]:
        found = _of_rank(record, run_curves)
        charts = [chart.draw() for chart in plots_of(run_curves, found, columns=COARSE, loss=True)]
        if charts:
            summary = tag("summary", f"Plots, {run_curves.lane.lane}")
            folded.append(tag("details", summary, charts))
    hidden = len(record.run_curves_of_ranks) - 1 - _LANES
    if hidden > 0:
        folded.append(
            tag("p", f"{words.plural(hidden, 'further process', 'es')} without plots here.")
        )
    return tag("section", folded, aria_label="Plots of other processes") if folded else None


def _pictures(record: RunRecord) -> Html | None:
    """What the task drew of its model."""
    shown = [picture_html(picture) for picture in pictures_in(record.summary.path)]
    return _section("Pictures", shown, key="pictures") if shown else None


def _actions_taken(record: RunRecord) -> Html:
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
    shown = tag("div", table, class_="scroll actions", tabindex="0")
    return _section("What holdfast did", shown, key="actions")


def _notes(record: RunRecord) -> Html | None:
    groups = {
        "What is done about a finding (the policy)": record.summary.policy,
        "Not covered": record.summary.not_covered,
        "Errors inside holdfast (training went on)": record.summary.errors,
        "Processes": lane_notes(record.summary),
    }
    shown = [
        join(
            tag("h3", title),
            tag("ul", [tag("li", words.shortened(note, 600)) for note in reported]),
        )
        for title, notes in groups.items()
        if (reported := words.first_notes(notes))
    ]
    return _section("Worth knowing", shown, key="notes") if shown else None


def _environment(record: RunRecord) -> Html:
    rows = [
        join(tag("dt", label), tag("dd", _command(record, text) if label == "command" else text))
        for label, text in environment_of(record.summary).items()
    ]
    cost = tag("p", guard_cost_words(record.summary), class_="note")
    return _section("The run", tag("dl", rows), cost, key="run")


def _command(record: RunRecord, text: str) -> Html:
    """With a button to copy it where it is the whole line that was typed."""
    return tag("code", text, class_="copied" if record.summary.meta.get("started_by") else None)
