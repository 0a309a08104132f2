"""One script under ``holdfast run``: what was recorded and what the detectors found.

A trial holds facts, not whether they are right; see ``score`` for that. So a run folder that was
kept may be judged again, by other rules or against other answers, without running anything.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast.detectors import ALL, Detector
from holdfast.detectors.judge import Judge
from holdfast.errors import HoldfastError
from holdfast.faults.running import LIMIT, ProcessEnd, run_guarded
from holdfast.report import FindingGroup, replay, summarize
from holdfast.run import LaneData, Run, read_run

from .corpus import Case


@dataclass(frozen=True, kw_only=True)
class Found:
    """The part of a finding that is compared with an answer."""

    code: str
    severity: str
    step: int
    file: str = ""
    line: int = 0
    consequence: bool = False
    """It follows from another finding."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What became of one script."""

    name: str
    exit_code: int
    outcome: str
    """``finished``, ``stopped`` (by holdfast, state saved), ``failed``, ``killed``, ``late``."""
    seconds: float
    """Of the whole process, imports included."""
    steps: int = 0
    findings: tuple[Found, ...] = ()
    """In the order of a report."""
    known: Mapping[str, int] = field(default_factory=dict[str, int])
    """For each code the step at which it was first known; see ``known_steps``."""
    skipped: int = 0
    rollbacks: int = 0
    last_loss: float | None = None
    guard_cost: float | None = None
    """Share of the time between first and last step that was spent in holdfast."""
    errors: tuple[str, ...] = ()
    """Parts of holdfast that failed."""

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of its findings, each once."""
        return tuple(dict.fromkeys(found.code for found in self.findings))

    def plain(self) -> dict[str, Any]:
        """The trial as plain data, for JSON."""
        return asdict(self)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Trial:
        """Rebuild from a file; keys of later versions are ignored."""
        known = {k: v for k, v in data.items() if k in cls.__dataclass_fields__}
        known["findings"] = tuple(Found(**found) for found in known.get("findings", ()))
        known["errors"] = tuple(known.get("errors", ()))
        return cls(**known)


def try_case(case: Case, keep: Path | None = None, limit: float = LIMIT) -> Trial:
    """Run a script under holdfast, as a user would, and read what was recorded.

    Args:
        case: what to run; its script is not changed.
        keep: where the run folder shall lie; without it, it is read and removed.
        limit: seconds after which the script is killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        run_dir = keep or Path(folder) / "run"
        ended = run_guarded(case.path, run_dir, limit, _launcher(case.ranks))
        return read_trial(case.name, run_dir, ended)


def _launcher(ranks: int) -> list[str]:
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return words if ranks > 1 else []


def read_trial(name: str, path: Path, ended: ProcessEnd) -> Trial:
    """What a run folder holds; a script that never trained leaves none."""
    bare = Trial(
        name=name,
        exit_code=ended.exit_code,
        outcome="finished" if ended.exit_code == 0 else "failed",
        seconds=ended.seconds,
    )
    try:
        run = Run.open(path)
        summary = summarize(run)
        lanes = read_run(run)
    except HoldfastError as error:
        return replace(bare, errors=(str(error),) if path.exists() else ())
    known: dict[str, int] = {}
    for lane in lanes:
        for code, step in known_steps(lane).items():
            known[code] = min(step, known.get(code, step))
    return replace(
        bare,
        outcome="late" if run.meta.get("status") == "running" else summary.outcome,
        steps=summary.steps,
        findings=found_in(summary.finding_groups),
        known=known,
        skipped=summary.skipped,
        rollbacks=summary.rollbacks,
        last_loss=_number(summary.last_loss),
        guard_cost=_number(summary.guard_cost),
        errors=summary.errors,
    )


def judge_again(
    trial: Trial, path: Path, detectors: Iterable[type[Detector]] = ALL
) -> Trial | None:
    """The trial with the findings that ``holdfast check`` has about its run folder today.

    Which step a finding was known at is not computed: that takes a judgement of every single row.

    Args:
        trial: of the run that lies in the folder.
        path: the folder; None is returned when it cannot be read.
        detectors: who judges.
    """
    if not path.exists():
        # A script that never trained has no folder and no findings.
        return trial if trial.steps == 0 else None
    try:
        judged = replay(Run.open(path), detectors)
    except HoldfastError:
        return None
    failed = tuple(f"{event.data['where']}: {event.data['error']}" for event in judged.errors)
    return replace(
        trial, findings=found_in(judged.finding_groups), known={}, errors=(*trial.errors, *failed)
    )


def known_steps(lane: LaneData) -> dict[str, int]:
    """The step after which each code was first known to whoever watched the run.

    The rows are judged again one by one, each together with the events that had been written by
    the time of the next row; a code is known at the first row at which the judge reports it. So
    an exam that took ten steps counts as ten, whatever step its finding is about.
    """
    judge = Judge(rank=lane.rank)
    rows = lane.steps
    waiting = sorted(lane.events, key=lambda event: event.time)
    batches = sorted(lane.batches, key=lambda batch: int(batch.get("step", 0)))
    known: dict[str, int] = {}
    for i in range(len(rows)):
        until = float(rows["time"][i + 1]) if i + 1 < len(rows) else math.inf
        step = int(rows["step"][i])
        due = _taken(waiting, lambda event, until=until: event.time <= until)
        come = _taken(batches, lambda batch, step=step: int(batch.get("step", 0)) <= step)
        for finding in judge.feed(rows[i : i + 1], due, come):
            known.setdefault(finding.code, step)
    for finding in judge.close():
        known.setdefault(finding.code, int(rows["step"][-1]) if len(rows) else finding.step)
    return known


def found_in(finding_groups: Iterable[FindingGroup]) -> tuple[Found, ...]:
    """The findings, in the order of a report."""
    return tuple(
        Found(
            code=finding.code,
            severity=finding.severity.word,
            step=finding.step,
            file=Path(finding.file).name,
            line=finding.line,
            consequence=finding is not group.finding or bool(finding.evidence.get("consequence")),
        )
        for group in finding_groups
        for finding in group.findings
    )


def _taken(queue: list[Any], ready: Any) -> list[Any]:
    """Take what is ready off the front."""
    count = 0
    while count < len(queue) and ready(queue[count]):
        count += 1
    taken = queue[:count]
    del queue[:count]
    return taken


def _number(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None
