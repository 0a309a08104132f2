"""A run as JSON, for programs: the numbers of the summary and every finding."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from ..run import encode
from .joined_findings import FindingGroup
from .replay import ReplayedRun
from .summary import RunSummary

FORMAT = 1


def report_json(summary: RunSummary) -> str:
    """The summary as one JSON object; NaN and infinity are the strings the run folder uses."""
    known = {f.name: getattr(summary, f.name) for f in dataclasses.fields(summary)}
    finding_groups = known.pop("finding_groups")
    ending = known.pop("ending")
    saved = summary.saved_state
    data: dict[str, Any] = {
        "format": FORMAT,
        "outcome": ending.word,
        "ending": ending.line,
        **known,
        "path": str(summary.path),
        "actions_taken": [dataclasses.asdict(action) for action in summary.actions_taken],
        "cost": summary.cost and dataclasses.asdict(summary.cost),
        "saved_state": saved and dataclasses.asdict(saved),
        "lanes": [dataclasses.asdict(lane) for lane in summary.lanes],
        "losses": [dataclasses.asdict(loss) for loss in summary.losses],
        "ranks": [dataclasses.asdict(rank) for rank in summary.ranks],
        "findings": list(_reported(finding_groups)),
    }
    return _text(data)


def _reported(
    finding_groups: Iterable[FindingGroup], because: str = ""
) -> Iterator[dict[str, Any]]:
    """Every finding, with the code of the one that it follows from."""
    for group in finding_groups:
        yield {
            **group.finding.to_dict(),
            "ranks": list(group.ranks),
            "consequences": [list(echo) for echo in group.consequences],
            "because": because,
        }
        yield from _reported(group.follows, group.finding.code)


def check_json(result: ReplayedRun) -> str:
    """A replay as JSON: how the run ended, and every finding."""
    plain = [finding.to_dict() for finding in result.findings]
    ending = {"outcome": result.ending.word, "ending": result.ending.line, "sick": result.sick}
    return _text({"format": FORMAT, **ending, "count": len(plain), "findings": plain})


def _text(data: dict[str, Any]) -> str:
    return encode(data, indent=2).decode("ascii") + "\n"
