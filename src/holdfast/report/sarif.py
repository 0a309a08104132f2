"""Findings as SARIF 2.1.0, which code scanning, editors and other tools read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..detectors import Detector, document
from ..types import Finding, Severity
from .code_places import place_of
from .ending import RunEnding
from .words import NBSP

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_ABOUT = ("What it detects", "Why it matters")
_HELP = ("Usual causes", "What to do")


def sarif_text(
    findings: Sequence[Finding],
    ending: RunEnding,
    meta: Mapping[str, Any],
    root: Path,
    detectors: Sequence[type[Detector]],
) -> str:
    """The findings of one run as one SARIF log.

    Args:
        findings: what was found.
        ending: how the run ended.
        meta: of the run.
        root: the repository; files below it are named from there.
        detectors: whose documents explain the codes.
    """
    known = {detector.code: detector for detector in detectors}
    codes = list(dict.fromkeys(finding.code for finding in findings))
    driver = {
        "name": "holdfast",
        "version": str(meta.get("holdfast", "")) or "unknown",
        "rules": [_rule(code, known.get(code), findings) for code in codes],
    }
    results = [_result(finding, codes.index(finding.code), meta, root) for finding in findings]
    done: dict[str, Any] = {"executionSuccessful": not ending.died}
    if isinstance(meta.get("exit_code"), int):
        done["exitCode"] = meta["exit_code"]
    if ending.line != "finished":
        done["exitCodeDescription"] = ending.line
    run = {
        "tool": {"driver": driver},
        "invocations": [done],
        "results": results,
        "columnKind": "unicodeCodePoints",
    }
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, ensure_ascii=False).replace(NBSP, " ") + "\n"


def _rule(
    code: str, detector: type[Detector] | None, findings: Sequence[Finding]
) -> dict[str, Any]:
    if detector is None:  # of a plugin that is not installed here
        name = next(finding.name for finding in findings if finding.code == code)
        return {"id": code, "name": name, "shortDescription": {"text": name.replace("_", " ")}}
    page = document(detector)
    help_text = "\n\n".join(
        f"{title}\n{page.sections[title]}" for title in _HELP if title in page.sections
    )
    about = "\n\n".join(page.sections[title] for title in _ABOUT if title in page.sections)
    return {
        "id": code,
        "name": detector.name,
        "shortDescription": {"text": page.summary},
        "fullDescription": {"text": about or page.summary},
        "help": {"text": f"{help_text}\n\nMore: holdfast explain {code}"},
        "defaultConfiguration": {"level": _LEVELS[detector.severity]},
    }


def _result(finding: Finding, index: int, meta: Mapping[str, Any], root: Path) -> dict[str, Any]:
    file, line = place_of(finding, meta, root)
    said: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.message}\n{finding.advice}"},
        "locations": [_location(file, line)] if file else [],
        # The same fault on the next run is the same alert, whatever its step and numbers.
        "partialFingerprints": {"holdfast/v1": f"{finding.code}:{file}:{line}"},
        "properties": {
            "step": finding.step,
            "lastStep": finding.last_step,
            "rank": finding.rank,
            "action": finding.action,
            "confidence": finding.confidence,
        },
    }
    diff = finding.evidence.get("diff")
    if isinstance(diff, str):
        said["properties"]["diff"] = diff
    return said


def _location(file: str, line: int) -> dict[str, Any]:
    path = quote(file, errors="replace")
    uri = f"file://{path}" if file.startswith("/") else path
    place: dict[str, Any] = {"artifactLocation": {"uri": uri}}
    if line:
        place["region"] = {"startLine": line}
    return {"physicalLocation": place}
