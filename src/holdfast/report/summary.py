"""A run in numbers: what happened, what was found, what it cost. Every report starts here.

summary = summarize(Run.latest("runs"))
summary.outcome, summary.steps, [finding.code for finding in summary.findings]
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from ..config import DetectorSettings
from ..detectors import ALL, Detector, load_plugins
from ..detectors.comparison import compare_ranks
from ..detectors.judge import Judge
from ..detectors.options import configured, recorded_options
from ..records import records_of
from ..records.resuming import Resumed
from ..records.run import NotCovered, PartFailed, PolicyRules, Start
from ..records.steps import GuardedOptimizer, SwitchedToFused
from ..records.trainer import GradientNormTotals
from ..run import LaneData, Run
from ..run.resumption import RESUMED_FROM
from ..types import Event, Finding
from . import words
from .actions_taken import ActionTaken, actions_of, restart_actions
from .cost import Cost, joined
from .ending import RunEnding, ending_of, first_exception
from .interventions import interventions
from .joined_findings import FindingGroup, join_ranks
from .lanes import LaneSummary, read_lanes, summarize_lane
from .losses import LossCurve, changes, joined_losses
from .ranks import RankSummary, rank_summaries
from .restarts import ends_once, last_restart, restart_line
from .saved_state import SavedState, saved_state_of, with_command

_CODE = re.compile(r"\b[A-Z]{3}\d{3}\b")
_EARLY = ("failed", "killed", "interrupted", "stopped")
_HOW = {
    "fused": "skipped by its fused kernel",
    "hidden gradients": "skipped by hiding their gradients from it",
    "not called": "skipped by not calling its step",
    "snapshot": "undone from a snapshot",
    "detect only": "only detected",
}


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """Everything a report says about a run."""

    path: Path
    meta: Mapping[str, Any]
    ending: RunEnding
    lanes: tuple[LaneSummary, ...]
    finding_groups: tuple[FindingGroup, ...]
    steps: int
    skipped: int
    seconds: float
    """Of training; restarts add up."""
    first_loss: float
    """The first one that was finite."""
    last_loss: float
    """The last one that was recorded, NaN or infinite if the run ended so."""
    bad_losses: int
    """Losses that were NaN or infinite, over restarts; the lead rank's."""
    mean_loss: float
    """Mean of the losses without them."""
    guard_cost: float
    """Share of the time of the steps that was spent in holdfast; NaN when unknown."""
    cost: Cost | None = None
    """The same in seconds, by kind of step."""
    before: int = 0
    """Steps that were done in another run, from whose checkpoint this one goes on."""
    loss_over: int = 1
    """Steps at either end of which first and last loss are medians."""
    losses: tuple[LossCurve, ...] = ()
    """Each loss of the lead rank, the one that most steps are about first."""
    finite_loss: float = math.nan
    """The last loss that was finite."""
    finite_step: int = -1
    """The step of it."""
    exception: Mapping[str, Any] | None = None
    saved_state: SavedState | None = None
    """What is left of a run that ended early."""
    not_covered: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    """What holdfast changed about the script's optimizers."""
    actions_taken: tuple[ActionTaken, ...] = ()
    """All actions taken on the run."""
    interventions: str = ""
    """What was done beyond the skip of bad steps, and how to forbid it; mostly empty."""
    rollbacks: int = 0
    """Number of rollbacks that were kept."""
    policy: tuple[str, ...] = ()
    """The policy: which finding gets which action, one line per rule."""
    errors: tuple[str, ...] = ()
    """Parts of holdfast that failed and were switched off."""
    dropped: int = 0
    """Records lost because the ring or the device readback was full."""
    files: tuple[int, int] = (0, 0)
    """How many files the run folder holds, and their bytes."""
    page: str = ""
    """Path of the HTML report; empty when there is none yet."""
    unreadable: tuple[str, ...] = ()
    """Damaged parts of the recording, not included here; see ``read_record``."""
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    ranks: tuple[RankSummary, ...] = ()
    """The ranks side by side, the odd one and the slowest first; empty where there is one."""

    @property
    def outcome(self) -> str:
        """One word: finished, failed, killed, stopped, interrupted, running, unfinished."""
        return self.ending.word

    @property
    def length(self) -> str:
        """How many steps, and of a resumed run how many of them it did itself."""
        count = words.plural(self.steps, "step")
        here = f" ({words.number(self.steps - self.before)} since it was resumed)"
        return count + here * bool(self.before)

    @property
    def stands_still(self) -> bool:
        """Whether most steps of a rank were skipped: the training did not go on."""
        return any(lane.stands_still for lane in self.lanes)

    @property
    def skipped_steps(self) -> str:
        """``3 steps skipped``; of a training that stands still what that means. Empty for none."""
        if self.stands_still:
            share = f"{words.number(self.skipped)} of {words.plural(self.steps, 'step')} skipped"
            return f"the training does not go on: {share}"
        return f"{words.plural(self.skipped, 'step')} skipped" if self.skipped else ""

    @property
    def loss_change(self) -> str:
        """How the loss moved: ``loss 5.6 → 0.05``, of several each; empty without one."""
        if len(self.losses) > 1 or any(one.parts > 1 for one in self.losses):
            return changes(self.losses)
        if not self.bad_losses or math.isfinite(self.last_loss):
            change = words.loss_change(self.first_loss, self.last_loss)
            many = change and self.loss_over > 1
            return f"{change} (medians of {self.loss_over} steps)" if many else change
        return words.loss_lost(self.first_loss, self.last_loss, self.finite_loss, self.finite_step)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings, worst and most causal first, the same one on several ranks once."""
        return tuple(f for group in self.finding_groups for f in group.findings)


def summarize(run: Run) -> RunSummary:
    """Read a run folder and sum it up; works during the run and after any kind of death."""
    return summarize_lanes(run, read_lanes(run))


def summarize_lanes(
    run: Run, data: Sequence[LaneData], unreadable: tuple[str, ...] = ()
) -> RunSummary:
    """Sum up what was read of a run."""
    lanes = tuple(summarize_lane(lane) for lane in data)
    events = [event for lane in data for event in lane.events]
    finished = run.meta.get("status") == "finished"
    judged = [(lane, list(_findings(lane, finished, run.meta))) for lane in data]
    found = [(lane.lane, finding) for lane, findings in judged for finding in findings]
    compared = compare_ranks(judged, _wanted(run.meta))
    found += compared.found
    since = last_restart(run.meta)
    newest = [event for event in events if event.time >= since]
    first = first_exception(newest)
    exception = None if first is None else first.to_dict()
    ending = ending_of(run, events)
    trained = _in_order(data, lanes)
    lead = [seen for _, seen in trained if seen.rank == lanes[0].rank]
    cost = joined(lane.cost for lane in lanes)
    finite = [lane for lane in lead if lane.finite_step >= 0]
    early = ending.word in _EARLY
    rollbacks = int(_over_ranks(lanes, "rollbacks"))
    finding_groups = join_ranks(ends_once(found, run.meta))
    done = restart_line(run.meta), interventions(data, rollbacks)
    return RunSummary(
        path=run.path,
        meta=dict(run.meta),
        ending=ending,
        lanes=lanes,
        finding_groups=finding_groups,
        steps=steps_done(_span(lane, seen) for lane, seen in trained),
        skipped=int(_over_ranks(lanes, "skipped")),
        seconds=_over_ranks(lanes, "seconds"),
        before=_steps_before(trained),
        first_loss=finite[0].first_loss if finite else math.nan,
        last_loss=lead[-1].last_loss if lead else math.nan,
        bad_losses=sum(lane.bad_losses for lane in lead),
        mean_loss=_mean_loss(lead),
        guard_cost=math.nan if cost is None else cost.share,
        cost=cost,
        loss_over=lead[-1].loss_over if lead else 1,
        losses=joined_losses([lane.losses for lane in lead]),
        finite_loss=finite[-1].finite_loss if finite else math.nan,
        finite_step=finite[-1].finite_step if finite else -1,
        exception=exception,
        saved_state=_saved(run, data, events if early else newest, early=early),
        not_covered=_notes((note.what, note.why) for note in records_of(NotCovered, events)),
        changes=_changes(events),
        actions_taken=(*restart_actions(run.meta), *actions_of(data, lanes)),
        interventions="; ".join(filter(None, done)),
        rollbacks=rollbacks,
        policy=_policy(events),
        errors=_notes(
            (failed.where, failed.error)
            for failed in records_of(PartFailed, [*events, *compared.errors])
        ),
        dropped=sum(lane.dropped for lane in lanes),
        files=_files(run),
        page=str(run.page_path) if run.page_path.is_file() else "",
        unreadable=unreadable,
        facts={**_facts(run.meta, events), **_goes_on(run)},
        ranks=rank_summaries(lanes, [f for g in finding_groups for f in g.findings]),
    )


def _saved(
    run: Run, data: Sequence[LaneData], events: Sequence[Event], *, early: bool
) -> SavedState | None:
    saved = saved_state_of(events, run.path, ended_early=early)
    last = max((int(lane.steps["step"][-1]) for lane in data if len(lane.steps)), default=-1)
    return with_command(saved, run, events, last) if early else saved


def _findings(lane: LaneData, finished: bool, meta: Mapping[str, Any]) -> Iterable[Finding]:
    """Recorded findings; a run without a final record is judged again from its rows.

    The recorded finding stays where it counts more: rows of long runs are thinned.
    """
    if finished:
        return lane.findings
    among = (*ALL, *load_plugins(os.environ, ALL).detectors)
    judge = Judge(configured(among, recorded_options(meta, among)), rank=lane.rank)
    judge.feed(lane.steps, lane.events, lane.batches)
    judge.close()
    best = {finding.key: finding for finding in lane.findings}
    for finding in judge.findings:
        known = best.get(finding.key)
        if known is None or finding.evidence["count"] > known.evidence.get("count", 1):
            best[finding.key] = finding
    return best.values()


def _wanted(meta: Mapping[str, Any]) -> list[Detector]:
    """The detectors that the run was told to use; findings about ranks are not recorded."""
    reported = _mapping(_mapping(meta.get("settings")).get("detectors"))
    chosen = DetectorSettings(
        select=_words(reported.get("select"), ("ALL",)), ignore=_words(reported.get("ignore"), ())
    )
    wanted = [detector for detector in ALL if chosen.wants(detector.code)]
    return configured(wanted, recorded_options(meta, ALL))


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _words(value: Any, otherwise: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(str, cast("list[Any]", value))) if isinstance(value, list) else otherwise


def _in_order(
    data: Sequence[LaneData], lanes: Sequence[LaneSummary]
) -> list[tuple[LaneData, LaneSummary]]:
    """Lanes that have steps, the earliest first: a resumed run goes on in a lane of its own."""
    trained = [both for both in zip(data, lanes, strict=True) if len(both[0].steps)]
    return sorted(trained, key=lambda both: float(both[0].steps["time"][0]))


def steps_done(trained: Iterable[tuple[int, int, int, bool]]) -> int:
    """Restarts of a rank add up; one that resumed goes on from the step of its checkpoint.

    What was done after that checkpoint is done again and counts once, so that the number is the
    one the training itself ends with.

    Args:
        trained: rank, first step, steps and whether it resumed, of each lane, the earliest first.
    """
    done: dict[int, int] = {}
    for rank, first, steps, resumed in trained:
        done[rank] = (first if resumed else done.get(rank, 0)) + steps
    return max(done.values(), default=0)


def _span(lane: LaneData, seen: LaneSummary) -> tuple[int, int, int, bool]:
    resumed = any(event.kind == Resumed.kind for event in lane.events)
    return seen.rank, seen.first_step, seen.steps, resumed


def _steps_before(trained: Sequence[tuple[LaneData, LaneSummary]]) -> int:
    """Steps that the earliest lane did not do itself."""
    if not trained or not any(event.kind == Resumed.kind for event in trained[0][0].events):
        return 0
    return max(0, trained[0][1].first_step)


def _over_ranks(lanes: Sequence[LaneSummary], name: str) -> float:
    """Restarts of a rank add up; ranks do the same steps together."""
    totals: dict[int, float] = {}
    for lane in lanes:
        totals[lane.rank] = totals.get(lane.rank, 0) + getattr(lane, name)
    return max(totals.values(), default=0)


def _mean_loss(lanes: Sequence[LaneSummary]) -> float:
    known = [lane for lane in lanes if not math.isnan(lane.mean_loss)]
    weights = [lane.rows for lane in known]
    return (
        float(np.average([lane.mean_loss for lane in known], weights=weights))
        if known
        else math.nan
    )


def _policy(events: Iterable[Event]) -> tuple[str, ...]:
    recorded = next(records_of(PolicyRules, events), None)
    rules = () if recorded is None else recorded.rules
    return tuple(_CODE.sub(lambda code: _named(code[0]), rule) for rule in rules)


def _named(code: str) -> str:
    """A code with its name, which says what it is about: ``NUM001 nonfinite loss``."""
    known = next((detector for detector in ALL if detector.code == code), None)
    return code if known is None else f"{code} {known.name.replace('_', ' ')}"


def _notes(notes: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{what}: {why}" for what, why in notes))


def _changes(events: Iterable[Event]) -> tuple[str, ...]:
    changes: dict[str, None] = {}
    for event in events:
        if (switched := SwitchedToFused.of(event)) is not None:
            name = switched.cls or "the optimizer"
            changes[f"{name} runs as its fused kernel, which can skip a step by itself"] = None
        elif (guarded := GuardedOptimizer.of(event)) is not None and guarded.how:
            handled = _HOW.get(guarded.how, guarded.how)
            # Where nothing can be done the reason matters; elsewhere it only fills the line.
            why = f": {guarded.why}" if guarded.how == "detect only" and guarded.why else ""
            name = guarded.cls or "the optimizer"
            changes[f"bad steps of {name} are {handled}{why}"] = None
    return tuple(changes)


def _norms(events: Iterable[Event]) -> str:
    """The gradient norms that a trainer summed up last: of the run, or of its newest epoch."""
    reported = [norms for e in events if not e.rank and (norms := GradientNormTotals.of(e))]
    if not reported:
        return ""
    newest = reported[-1]
    over = "" if newest.epoch is None else f" in epoch {newest.epoch + 1}"
    return "; ".join(filter(None, [f"{newest.line}{over}", newest.advice]))


def _goes_on(run: Run) -> dict[str, str]:
    """Which other run this one goes on from; a restart goes on in the same folder."""
    point: Any = run.meta.get(RESUMED_FROM)
    known = cast("dict[str, Any]", point) if isinstance(point, dict) else {}
    name = str(known.get("run") or "")
    if not name or Path(name).name == run.path.name:
        return {}
    return {"resumed": f"goes on from {name} after step {known.get('step')}"}


def _files(run: Run) -> tuple[int, int]:
    """What was recorded, without the page made of it; files of a live run may vanish meanwhile."""
    sizes: list[int] = []
    with contextlib.suppress(OSError):
        made = (run.page_path.name, run.overlay_path.name)
        entries = [entry for entry in os.scandir(run.path) if entry.name not in made]
        sizes = [entry.stat().st_size for entry in entries if entry.is_file()]
    return len(sizes), sum(sizes)


def _word(given: Any) -> str:
    """A word of a command as a shell takes it; one with a secret that was taken out, as it is."""
    return str(given) if "***" in str(given) else shlex.quote(str(given))


def _started_by(meta: Mapping[str, Any]) -> list[str]:
    """What stands before the command where it is typed; nothing in a run of ``holdfast.watch``."""
    known = meta.get("started_by")
    return [known] if isinstance(known, str) else []


def _facts(meta: Mapping[str, Any], events: Sequence[Event]) -> dict[str, str]:
    start = next(records_of(Start, events), Start())
    command = meta.get("command")
    given = cast("list[Any]", command) if isinstance(command, list) else []
    facts = {
        "command": " ".join([*_started_by(meta), *map(_word, given)]),
        "started": str(meta.get("created", ""))[:19].replace("T", " "),
        "holdfast": str(meta.get("holdfast", "")),
        "python": start.python or str(meta.get("python", "")),
        "torch": start.torch,
        "device": start.device,
        "world": "" if start.world is None else str(start.world),
        "gradients": _norms(events),
    }
    return {name: value for name, value in facts.items() if value}
