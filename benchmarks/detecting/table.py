"""Grades and scores as text: the same cells for a terminal, a file and a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .score import GOALS, Grade, Score, scores_by_collection, scores_by_status
from .trial import Trial

COLUMNS = (
    "script", "wanted", "first", "detected", "code", "line", "named", "steps", "alive",
    "alarms", "cost", "trouble",
)  # fmt: skip

LEGEND = (
    "wanted: code of the fault. first: code of the first finding. detected: a finding of the "
    "right code, anywhere. code: the first finding has it. line: what the right finding names is "
    "exact, within 2 lines (±2), or wrong; - where no line is given. steps: from the first step of "
    "the fault to the step after which its code was known (rows and events judged again in the "
    "order in which they were written). alive: the script came to its own end. alarms: other codes "
    "above info. cost: share of the loop's time spent in holdfast. trouble: parts of holdfast that "
    "failed."
)


def cells_of(grade: Grade) -> dict[str, str]:
    """One script as a row of the table."""
    case, trial = grade.case, grade.trial
    healthy = case.healthy
    return {
        "script": case.name,
        "wanted": "silence" if healthy else case.codes[0],
        "first": trial.findings[0].code if trial.findings else "-",
        "detected": "" if healthy else _yes(grade.detected),
        "code": "" if healthy else _yes(grade.first),
        "line": "" if healthy else _line(grade),
        "named": grade.place or "-",
        "steps": "-" if grade.steps is None else str(grade.steps),
        "alive": "yes" if grade.alive else f"NO: {trial.outcome} {trial.exit_code}",
        "alarms": " ".join(grade.alarms) or "-",
        "cost": "-" if trial.guard_cost is None else f"{trial.guard_cost:.1%}",
        "trouble": str(len(trial.errors)) if trial.errors else "-",
    }


def score_sentences(score: Score) -> list[str]:
    """A score in a few sentences."""
    sentences: list[str] = []
    if score.faults:
        shares = ", ".join(f"{name} {_share(*count)}" for name, count in score.shares.items())
        steps = "" if score.steps is None else f" median steps to detect {score.steps:g};"
        sentences.append(
            f"{score.name}, {score.faults} faults: {shares};{steps} "
            f"finished {score.alive} of {score.faults}."
        )
    if score.healthy:
        sentences.append(
            f"{score.name}, {score.healthy} healthy: findings above info on {score.accused}, "
            f"not finished {score.broken}."
        )
    if score.cost is not None:
        sentences.append(f"{score.name}: median guard share {score.cost:.1%}.")
    return sentences


def goal_sentences(scores: Sequence[Score]) -> list[str]:
    """Each goal that is missed, or that none is."""
    missed = [f"MISSED ({score.name}): {goal}" for score in scores for goal in score.missed]
    wanted = ", ".join(f"{name} {share:.0%}" for name, share in GOALS.items())
    return missed or [f"Goals met: {wanted}, healthy scripts silent."]


def result_lines(grades: Sequence[Grade]) -> list[str]:
    """The scores by status and the goals, as a Markdown list and sentences."""
    scores = scores_by_status(grades)
    lines = [f"- {sentence}" for score in scores for sentence in score_sentences(score)]
    return [*lines, "", *goal_sentences(scores)]


def collection_lines(grades: Sequence[Grade]) -> list[str]:
    """One row for each collection, as a Markdown table."""
    status = {grade.case.collection: grade.case.status for grade in grades}
    shares = ("detected", "code first", "line exact", "line ±2")
    head = ("collection", "status", "faults", *shares, "healthy", "accused")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for score in scores_by_collection(grades):
        counts = [str(count) if of else "-" for count, of in score.shares.values()]
        cells = [score.name, status[score.name], str(score.faults), *counts]
        lines.append(f"| {' | '.join([*cells, str(score.healthy), str(score.accused)])} |")
    return lines


def script_lines(grades: Sequence[Grade]) -> list[str]:
    """One row for each script, as a Markdown table."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    return [*lines, *(f"| {' | '.join(cells_of(grade).values())} |" for grade in grades)]


def changed_lines(grades: Sequence[Grade], recorded: Mapping[str, Trial]) -> list[str]:
    """The scripts about which there are other findings now than in the recorded trials."""
    lines: list[str] = []
    for grade in grades:
        before, now = _findings(recorded[grade.case.name]), _findings(grade.trial)
        if before != now:
            lines.append(f"{grade.case.name}: {before or 'nothing'} -> {now or 'nothing'}")
    return lines


def plain_of(grades: Sequence[Grade]) -> dict[str, Any]:
    """Everything as plain data, for JSON."""
    return {
        "scores": [_plain_score(score) for score in scores_by_status(grades)],
        "collections": [_plain_score(score) for score in scores_by_collection(grades)],
        "cases": [
            {
                **grade.case.plain(),
                "detected": grade.detected,
                "first": grade.first,
                "exact": grade.exact,
                "near": grade.near,
                "steps": grade.steps,
                "alive": grade.alive,
                "alarms": list(grade.alarms),
                "trial": grade.trial.plain(),
            }
            for grade in grades
        ],
    }


def _plain_score(score: Score) -> dict[str, Any]:
    return {
        "name": score.name,
        "faults": score.faults,
        "healthy": score.healthy,
        **{name: list(count) for name, count in score.shares.items()},
        "alive": score.alive,
        "accused": score.accused,
        "broken": score.broken,
        "median_steps": score.steps,
        "median_cost": score.cost,
        "missed": score.missed,
    }


def _findings(trial: Trial) -> str:
    return ", ".join(f"{f.code} {f.severity} {f.file}:{f.line}" for f in trial.findings)


def _line(grade: Grade) -> str:
    if grade.exact is None:
        return "-"
    return "exact" if grade.exact else "±2" if grade.near else "NO"


def _yes(so: bool) -> str:
    return "yes" if so else "NO"


def _share(count: int, of: int) -> str:
    return f"{count} of {of} ({count / of:.0%})" if of else "-"
