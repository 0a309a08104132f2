"""Compare two runs: what became slower, larger or worse, and findings of only one of them.

found = compare(Run.open("runs/before"), Run.open("runs/after"))
found.worse, [figure.name for figure in found.figures if figure.verdict == "worse"]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import RunFolderError, UsageError
from ..records import records_of
from ..records.steps import GuardedOptimizer
from ..run import LaneData, Rows, Run, encode
from ..run.resumption import DIGEST
from ..types import Finding, Severity, place_words
from . import words
from .columns import column, of_first_optimizer
from .lanes import PHASES, means, peaks, read_lanes
from .layout import WIDTH, Line, Span, line, paragraph
from .losses import LossCurve, differ, losses_of, rows_of
from .run_curves import earlier_lanes, run_curves_of
from .summary import RunSummary, summarize_lanes

LIMITS: Mapping[str, float | str] = {
    "step_time": 0.10,
    "samples_per_second": 0.10,
    "rss": 0.10,
    "mem_allocated": 0.10,
    "loss": 0.05,
    "findings": "warning",
    "ending": "on",
}
"""Limits beyond which the second run is worse: shares, and the severity of findings."""
_NOTHING: Mapping[str, float | str] = {
    name: math.inf if isinstance(limit, float) else "off" for name, limit in LIMITS.items()
}

_UNITS = {"rss": "B", "mem_allocated": "B", "mem_reserved": "B", "samples_per_second": "/s"}
_SHOWN = {
    "rss": "host memory (rss)", "mem_allocated": "device memory", "mem_reserved": "device reserved",
}  # fmt: skip
_HIGHER_IS_BETTER = ("samples_per_second",)
_MEMORY = ("rss", "mem_allocated", "mem_reserved")
_NEVER = math.inf
# Beyond this a percentage is reported as a factor.
_FOLD = 9.0
# The first steps compile, allocate and fill caches; they say nothing about the others.
_WARM_UP = 3
# Times differ from run to run: a change within so many standard errors of the median is noise.
_ERRORS = 3.0
# The loss of one step is noise; this share of the common steps, at their end, is compared.
_LAST = 0.1


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One number of both runs; NaN where a run does not have it, infinite for a lost loss."""

    name: str
    before: float
    after: float
    of: str = "median"
    """What it is of the steps of each run: ``median``, ``mean`` or ``peak``."""
    verdict: str = ""
    """``worse``, ``better``, ``same``; empty when it was not judged."""
    comparable: bool = True
    """Whether it is of the same thing in both runs; of others there is no percentage."""

    @property
    def change(self) -> float:
        """How much higher it is in the second run, as a share."""
        known = not (math.isnan(self.before) or math.isnan(self.after))
        if not known or not self.comparable or self.before == self.after == _NEVER:
            return math.nan
        if _NEVER in (self.before, self.after):
            return _NEVER if self.after == _NEVER else -_NEVER
        difference = self.after - self.before
        if not self.before:
            return math.copysign(_NEVER, difference) if difference else 0.0
        return difference / abs(self.before)


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """Differences of the second run from the first."""

    before: RunSummary
    after: RunSummary
    figures: tuple[Figure, ...]
    at_step: int
    """The last step both runs have; the loss is compared on the steps up to it."""
    gone: tuple[Finding, ...]
    new: tuple[Finding, ...]
    reasons: tuple[str, ...]
    """Why the second run counts as the worse one; empty when it does not."""
    differs: str = ""
    """How scripts or arguments differ, where losses may mean different things for it; or empty."""
    losses: tuple[LossCurve, LossCurve] | None = None
    """The losses that are compared."""
    judged: bool = True
    """Whether the second run was judged by the first; another script is not, unless asked."""

    @property
    def worse(self) -> bool:
        """Whether a limit was passed."""
        return bool(self.reasons)

    @property
    def verdict(self) -> str:
        """``worse``, ``not worse`` or ``not judged``."""
        return "worse" if self.worse else "not worse" if self.judged else "not judged"


def read_limits(given: Sequence[str]) -> dict[str, float | str]:
    """Parse limits: the defaults, changed by ``name=10%``, ``name=off``, ``findings=error``.

    >>> limits = read_limits(["step_time=5%", "loss=off", "findings=error"])
    >>> limits["step_time"], limits["loss"], limits["findings"]
    (0.05, inf, 'error')
    """
    limits = dict(LIMITS)
    for setting in [one for text in given for one in text.split(",") if one]:
        name, _, value = setting.partition("=")
        if name not in {*LIMITS, *PHASES, *_UNITS}:
            known = ", ".join([*LIMITS, *PHASES, "mem_reserved"])
            raise UsageError(f"--fail-on does not know {name!r}; use one of {known}")
        limits[name] = _limit(name, value)
    return limits


def compare(
    before: Run, after: Run, limits: Mapping[str, float | str] | None = None
) -> RunComparison:
    """Read both runs and judge the second by the first.

    Args:
        before: the reference run.
        after: the run that is judged.
        limits: how much higher (lower, of samples per second) a figure may be; ``LIMITS`` when not
            given, and none at all between runs of different scripts.
    """
    (one, first), (two, second) = _read(before), _read(after)
    differs = _other_script(before, after) or _other_model(before, after, one, two)
    judged = limits is not None or not differs
    limits = limits if limits is not None else _NOTHING if differs else LIMITS
    differs = differs or _other_arguments(before, after)
    losses = _same_losses(losses_of(one), losses_of(two))
    other_loss = _other_loss(*losses)
    at_step, loss = _losses(one, two, losses, comparable=not other_loss)
    pairs = {"step_time": (_step_times(one), _step_times(two))}
    noise = _ERRORS * math.hypot(*(_error(times) for times in pairs["step_time"]))
    raw = [
        Figure(name="step_time", before=_middle(pairs["step_time"][0]),
               after=_middle(pairs["step_time"][1])),
        *_paired(means(_warm(one), PHASES), means(_warm(two), PHASES), PHASES, "mean"),
        Figure(name="samples_per_second", before=_pace(one), after=_pace(two)),
        *_paired(peaks(one.steps, _MEMORY), peaks(two.steps, _MEMORY), _MEMORY, "peak"),
        loss,
    ]  # fmt: skip
    figures = tuple(
        _judged(figure, limits.get(figure.name), noise if figure.name == "step_time" else 0.0)
        for figure in raw
        if not (math.isnan(figure.before) and math.isnan(figure.after))
    )
    known = {_identity(finding) for finding in first.findings}
    found = {_identity(finding) for finding in second.findings}
    new = tuple(f for f in second.findings if _identity(f) not in known)
    return RunComparison(
        before=first,
        after=second,
        figures=figures,
        at_step=at_step,
        gone=tuple(f for f in first.findings if _identity(f) not in found),
        new=new,
        reasons=tuple(_reasons(figures, new, first, second, limits)),
        differs="; ".join(filter(None, (differs, other_loss))),
        losses=losses,
        judged=judged,
    )


def compare_lines(found: RunComparison, width: int = WIDTH) -> list[Line]:
    """A comparison as text."""
    style = "bold red" if found.worse else "bold green" if found.judged else "bold yellow"
    verdict = Span(found.verdict, style)
    lines = [line(f"{found.before.path} → {found.after.path}: ", verdict)]
    for reason in filter(None, (found.differs, *found.reasons)):
        lines += paragraph(reason, indent=2, width=width)
    lines.append(line())
    wide = max((len(figure_name(found, figure)) for figure in found.figures), default=0)
    for figure in found.figures:
        name, change = figure_name(found, figure).ljust(wide), change_words(figure)
        values = [
            figure_words(figure.name, value).rjust(11) for value in (figure.before, figure.after)
        ]
        style = {"worse": "red", "better": "green"}.get(figure.verdict, "")
        lines.append(
            line(
                f"  {name}  {values[0]}  {values[1]}  ",
                Span(change.rjust(8), style),
            )
        )
    for title, findings in (("only in the second", found.new), ("only in the first", found.gone)):
        for finding in findings:
            where = f" at {place_words(finding.file, finding.line)}" if finding.line else ""
            reported = f"{title}: {_named(finding)}{where}, {finding.severity.word}"
            lines += paragraph(reported, indent=2, width=width)
    return lines


def compare_json(found: RunComparison) -> str:
    """A comparison for programs."""
    data: dict[str, Any] = {
        "worse": found.worse,
        "reasons": list(found.reasons),
        "judged": found.judged,
        "differs": found.differs,
        "before": str(found.before.path),
        "after": str(found.after.path),
        "at_step": found.at_step,
        "figures": [{**asdict(figure), "change": figure.change} for figure in found.figures],
        "new": [finding.to_dict() for finding in found.new],
        "gone": [finding.to_dict() for finding in found.gone],
    }
    return encode(data, indent=2).decode("ascii") + "\n"


def _limit(name: str, value: str) -> float | str:
    if value == "off":
        return "off" if name in ("findings", "ending") else _NEVER
    try:
        if name == "findings":
            return Severity.parse(value).word
        if name == "ending":
            return {"on": "on"}[value]
        share = float(value[:-1]) / 100 if value.endswith("%") else float(value)
    except (ValueError, KeyError):
        share = -1.0
    if not share >= 0:
        form = "info, warning, error or off" if name == "findings" else "10%, 0.1 or off"
        raise UsageError(f"--fail-on {name}={value} is not valid; give {form}")
    return share


def _read(run: Run) -> tuple[LaneData, RunSummary]:
    """The leading rank from its first step on, with the runs that this one goes on from."""
    lanes = read_lanes(run)
    if not lanes or not any(len(lane.steps) for lane in lanes):
        raise RunFolderError(f"{run.path} has no steps to compare; give a run that has trained")
    lanes.sort(key=lambda lane: not len(lane.steps))
    return run_curves_of(lanes, earlier_lanes(run))[0].lane, summarize_lanes(run, lanes)


def _other_script(before: Run, after: Run) -> str:
    """How the scripts of two runs differ; a script may have been moved, or edited."""
    names = [str(run.meta.get("script") or "").rpartition("/")[2] for run in (before, after)]
    if "" in names or names[0] == names[1]:
        return ""
    return (
        f"different scripts: {names[0]} and {names[1]}; their losses and steps may mean different "
        "things, so that nothing is judged unless --fail-on asks for it"
    )


def _other_model(before: Run, after: Run, one: LaneData, two: LaneData) -> str:
    """Whether files of one name are two scripts: other content, and no weight of one name."""
    digests = [run.meta.get(DIGEST) for run in (before, after)]
    layers = [_layers(lane) for lane in (one, two)]
    if digests[0] == digests[1] or not all((*digests, *layers)) or layers[0] & layers[1]:
        return ""
    return (
        "scripts of one name with other content and another model (no weight of the same name); "
        "their losses and steps may mean different things, so that nothing is judged unless "
        "--fail-on asks for it"
    )


def _layers(lane: LaneData) -> set[str]:
    """The names of the weights, as each optimizer was last recorded."""
    known = {found.opt: found.layers for found in records_of(GuardedOptimizer, lane.events)}
    return {name for names in known.values() for name in names}


def _other_arguments(before: Run, after: Run) -> str:
    """The arguments of two runs of a script that are not the same."""
    first, second = (_arguments(run.meta.get("command")) for run in (before, after))
    if first == second:
        return ""
    shown = (words.clip(" ".join(given) or "none", 80) for given in (first, second))
    return "different arguments: " + " → ".join(shown)


def _arguments(command: Any) -> list[str]:
    given = cast("list[Any]", command) if isinstance(command, list) else []
    return [str(word) for word in given[1:]]


def _step_times(lane: LaneData) -> NDArray[np.float64]:
    """Seconds between steps, of the rows that follow each other."""
    rows = of_first_optimizer(lane.steps)
    gaps, times = np.diff(rows["step"]), np.diff(rows["time"])
    return (times / np.maximum(gaps, 1))[gaps > 0][_WARM_UP:]


def _warm(lane: LaneData) -> Rows:
    """Rows behind the first few: of a short run those would make up much of a mean."""
    rows = of_first_optimizer(lane.steps)
    return rows[_WARM_UP + 1 :] if len(rows) > _WARM_UP + 1 else rows


def _middle(values: NDArray[np.float64]) -> float:
    return float(np.median(values)) if values.size else math.nan


def _error(values: NDArray[np.float64]) -> float:
    """Standard error of the median, from the median deviation: a few long steps do not count."""
    if values.size < 2:
        return math.inf
    deviation = 1.4826 * float(np.median(np.abs(values - np.median(values))))
    return 1.2533 * deviation / math.sqrt(values.size)


def _paired(
    before: Mapping[str, float], after: Mapping[str, float], names: Sequence[str], of: str
) -> list[Figure]:
    return [
        Figure(name=n, before=before.get(n, math.nan), after=after.get(n, math.nan), of=of)
        for n in names
    ]


def _pace(lane: LaneData) -> float:
    """Samples per second where a trainer recorded them."""
    records = [event.data.get("metrics", event.data) for event in lane.events]
    paces = [one.get("throughput_samples_per_sec") for one in records if isinstance(one, Mapping)]  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    known = [float(pace) for pace in paces if isinstance(pace, int | float)]  # pyright: ignore[reportUnknownVariableType]
    return float(np.median(known)) if known else math.nan


def _same_losses(
    before: Sequence[LossCurve], after: Sequence[LossCurve]
) -> tuple[LossCurve, LossCurve]:
    """Of several losses the first that the scripts call alike; otherwise those of most steps."""
    alike = ((a, b) for a in before for b in after if a.called == b.called)
    return next(alike, (before[0], after[0]))


def _other_loss(a: LossCurve, b: LossCurve) -> str:
    """How two losses differ that are different things, so that neither is worse."""
    if not differ(a, b):
        return ""
    reported = [f"{one.name}, made by {words.listed(one.made_by)}" for one in (a, b)]
    return f"different losses: {reported[0]}; {reported[1]}: they are not judged by each other"


def _losses(
    one: LaneData, two: LaneData, losses: tuple[LossCurve, LossCurve], *, comparable: bool
) -> tuple[int, Figure]:
    """Loss of both runs on the last steps that both have; infinite where most were not finite."""
    curves = [rows_of(lane.steps, loss) for lane, loss in zip((one, two), losses, strict=True)]
    common = np.intersect1d(curves[0]["step"], curves[1]["step"])
    last = common[-max(1, round(_LAST * len(common))) :]
    values: list[float] = []
    for rows in curves:
        chosen = rows[np.isin(rows["step"], last)]
        losses_there = column(chosen, "loss")
        finite = losses_there[np.isfinite(losses_there)]
        bad = int(np.sum(column(chosen, "loss_bad") > 0))
        value = float(np.median(finite)) if finite.size else math.nan
        values.append(_NEVER if bad > len(finite) else value)
    at_step = int(common[-1]) if len(common) else -1
    return at_step, Figure(name="loss", before=values[0], after=values[1], comparable=comparable)


def _judged(figure: Figure, limit: float | str | None, noise: float) -> Figure:
    change = -figure.change if figure.name in _HIGHER_IS_BETTER else figure.change
    if not isinstance(limit, float) or limit == _NEVER or math.isnan(change):
        return figure
    real = abs(figure.after - figure.before) > noise
    verdict = "worse" if real and change > limit else "same"
    verdict = "better" if real and change < -limit else verdict
    return replace(figure, verdict=verdict)


def _identity(finding: Finding) -> tuple[str, str, int]:
    """Findings of two runs are the same fault when code and place are."""
    return finding.code, finding.file.rpartition("/")[2], finding.line


def _named(finding: Finding) -> str:
    return f"{finding.code} {finding.name.replace('_', ' ')}"


def _by(figure: Figure, limit: float | str) -> str:
    change = change_words(figure)
    if not change or not isinstance(limit, float):
        return ""
    return f" ({change}), limit {words.percent(limit)}"


def _reasons(
    figures: Sequence[Figure],
    new: Sequence[Finding],
    first: RunSummary,
    second: RunSummary,
    limits: Mapping[str, float | str],
) -> list[str]:
    reasons = [
        f"{_label(figure)} {figure_words(figure.name, figure.before)} → "
        f"{figure_words(figure.name, figure.after)}{_by(figure, limits[figure.name])}"
        for figure in figures
        if figure.verdict == "worse"
    ]
    least = limits["findings"]
    if isinstance(least, str) and least != "off":
        severity = Severity.parse(least)
        reasons += [f"new: {_named(f)}" for f in new if f.severity >= severity]
    if limits["ending"] == "on" and first.outcome == "finished" != second.outcome:
        reasons.append(f"it {second.ending.line}; the first finished")
    return reasons


def figure_name(found: RunComparison, figure: Figure) -> str:
    """The name of a figure in words, and what it is of the steps."""
    name = f"loss to step {found.at_step}" if figure.name == "loss" else _label(figure)
    return f"{name}, {figure.of}"


def _label(figure: Figure) -> str:
    return _SHOWN.get(figure.name, figure.name.replace("_", " "))


def change_words(figure: Figure) -> str:
    """``+12.3%``; from nothing to something, or to what is not finite, there is no percentage."""
    if not math.isfinite(figure.change):
        return "from 0" if figure.before == 0.0 else ""
    if figure.change > _FOLD and figure.before > 0:
        return f"× {words.figure(figure.after / figure.before)}"
    return f"{figure.change:+.1%}"


def figure_words(name: str, value: float) -> str:
    """A value with its unit; ``-`` where a run does not have it."""
    if not math.isfinite(value):
        return "-" if math.isnan(value) else "not finite"
    if _UNITS.get(name) == "B":
        return words.size(value)
    if name == "loss" or name in _UNITS:
        return f"{words.figure(value)}{_UNITS.get(name, '')}"
    return words.duration(value)
