"""A run as JSON, for programs: the numbers of the summary and every finding."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from ..run import encode
from ..types import Finding
from .sightings import Sighting
from .summary import RunSummary

FORMAT = 1


def report_json(summary: RunSummary) -> str:
    """The summary as one JSON object; NaN and infinity are the strings the run folder uses."""
    known = {f.name: getattr(summary, f.name) for f in dataclasses.fields(summary)}
    sightings = known.pop("sightings")
    ending = known.pop("ending")
    data: dict[str, Any] = {
        "format": FORMAT,
        "outcome": ending.word,
        "ending": ending.line,
        **known,
        "path": str(summary.path),
        "deeds": [dataclasses.asdict(deed) for deed in summary.deeds],
        "lanes": [dataclasses.asdict(lane) for lane in summary.lanes],
        "findings": list(_told(sightings)),
    }
    return _text(data)


def _told(sightings: Iterable[Sighting], because: str = "") -> Iterator[dict[str, Any]]:
    """Every finding, with the code of the one that it follows from."""
    for sighting in sightings:
        yield {
            **sighting.finding.to_dict(),
            "ranks": list(sighting.ranks),
            "echoes": [list(echo) for echo in sighting.echoes],
            "because": because,
        }
        yield from _told(sighting.follows, sighting.finding.code)


def findings_json(findings: Iterable[Finding]) -> str:
    """A list of findings as JSON."""
    told = [finding.to_dict() for finding in findings]
    return _text({"format": FORMAT, "count": len(told), "findings": told})


def _text(data: dict[str, Any]) -> str:
    return encode(data, indent=2).decode("ascii") + "\n"
