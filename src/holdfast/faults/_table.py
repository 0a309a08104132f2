"""What a bench showed, as a table: the same cells for a terminal, a file and a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._score import GOALS, Grade, Score

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
    """One row of the table."""
    case, trial = grade.case, grade.trial
    healthy = case.healthy
    return {
        "script": case.name,
        "wanted": "silence" if healthy else case.codes[0],
        "first": trial.said[0].code if trial.said else "-",
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
    """A half in a few sentences."""
    told: list[str] = []
    if score.faults:
        shares = ", ".join(f"{name} {_share(*count)}" for name, count in score.shares.items())
        steps = "-" if score.steps is None else f"{score.steps:g}"
        told.append(
            f"{score.half}, {score.faults} faults: {shares}; median steps to detect {steps}; "
            f"kept alive {score.alive} of {score.faults}."
        )
    if score.healthy:
        told.append(
            f"{score.half}, {score.healthy} healthy: findings above info on {score.alarmed}, "
            f"not finished {score.broken}."
        )
    if score.cost is not None:
        told.append(f"{score.half}: median guard share {score.cost:.1%}.")
    return told


def goal_sentences(scores: Sequence[Score]) -> list[str]:
    """Each goal that is missed, or that none is."""
    missed = [f"MISSED ({score.half}): {goal}" for score in scores for goal in score.missed]
    wanted = ", ".join(f"{name} {share:.0%}" for name, share in GOALS.items())
    met = f"Goals met by what was run: {wanted} on the unseen half, healthy scripts silent."
    return missed or [met]


def markdown_of(grades: Sequence[Grade], scores: Sequence[Score]) -> str:
    """Scores and both halves as Markdown."""
    lines = [f"- {text}" for score in scores for text in score_sentences(score)]
    lines += ["", *goal_sentences(scores), "", LEGEND]
    for score in scores:
        part = [grade for grade in grades if grade.case.half == score.half]
        lines += ["", f"## The {score.half} half", ""]
        lines += [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
        lines += [f"| {' | '.join(cells_of(grade).values())} |" for grade in part]
    return "\n".join(lines) + "\n"


def text_of(grades: Sequence[Grade]) -> list[str]:
    """The rows as aligned text, the head first."""
    rows = [dict(zip(COLUMNS, COLUMNS, strict=True)), *(cells_of(grade) for grade in grades)]
    widths = {name: max(len(row[name]) for row in rows) for name in COLUMNS}
    return ["  ".join(row[name].ljust(widths[name]) for name in COLUMNS).rstrip() for row in rows]


def plain_of(grades: Sequence[Grade], scores: Sequence[Score]) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "scores": [
            {
                "half": score.half,
                "faults": score.faults,
                "healthy": score.healthy,
                **{name: list(count) for name, count in score.shares.items()},
                "alive": score.alive,
                "alarmed": score.alarmed,
                "broken": score.broken,
                "median_steps": score.steps,
                "median_cost": score.cost,
                "missed": score.missed,
            }
            for score in scores
        ],
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
                "good": grade.good,
                "trial": grade.trial.plain(),
            }
            for grade in grades
        ],
    }


def _line(grade: Grade) -> str:
    if grade.exact is None:
        return "-"
    return "exact" if grade.exact else "±2" if grade.near else "NO"


def _yes(so: bool) -> str:
    return "yes" if so else "NO"


def _share(count: int, of: int) -> str:
    return f"{count} of {of} ({count / of:.0%})" if of else "-"
