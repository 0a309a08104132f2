"""Scripts with one numerical fault each, written without knowledge of the exams: the line.

What is true about each stands in the ``manifest.json`` or ``answers.json`` beside them. Those in
``causes`` are ordinary loops; those of the catalogue are built in unusual ways, and some of them
are known to stay unexplained. A sample is part of every test run, all of them of
``make prove``; ``benchmarks/provenance.py`` makes the table of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.report import report_html, report_md, summarize
from holdfast.types import Finding

from .conftest import Bench

HERE = Path(__file__).parent / "scripts"
NUMBERS = Path(__file__).parents[2] / "corpus" / "2026-11-15-numbers"
TRUTH: dict[Path, dict[str, Any]] = {
    HERE / "causes" / name: truth
    for name, truth in json.loads((HERE / "causes" / "manifest.json").read_text()).items()
} | {
    NUMBERS / truth["script"]: {**truth, "lines": [truth["line"], *truth["also"]]}
    for truth in json.loads((NUMBERS / "answers.json").read_text())
    if "phase" in truth
}
# Why they stay unexplained, or are explained by another line, stands in docs/guide.md.
MISSED = {
    "hf_listing_dedup.py",  # the trainer deletes its batch, and its backward has returned
    "reinforce_warehouse.py",  # an episode cannot be played again
    "scaler_sparse_depth.py",  # skipped by the script's own GradScaler
    "tbptt_exponential_gate.py",  # the state of the step before is gone
}
SAMPLED = {"review_attention_pool.py"}


def chosen() -> list[Any]:
    marks = {
        path: [] if path.name in SAMPLED else [pytest.mark.slow]
        for path in TRUTH
        if path.name not in MISSED
    }
    return [pytest.param(path, marks=m, id=path.stem) for path, m in marks.items()]


@pytest.mark.parametrize("path", chosen())
def test_the_line_is_named(bench: Bench, path: Path) -> None:
    truth = TRUTH[path]
    outcome = bench.guarded(bench.link(path))
    assert outcome.code == 0, outcome.reported
    assert bench.record.events("holdfast_error") == []
    causes = [event.data for event in bench.record.events("cause")]
    assert causes, "no cause was found"
    cause = causes[0]
    if truth["phase"] in ("parameter", "input"):
        assert cause["phase"] == truth["phase"]
    else:
        assert (bench.folder / cause["file"]).resolve().name == truth["file"]
        assert cause["line"] in truth["lines"]
    if truth["phase"] == "parameter":
        assert cause["layer"] == truth["layer"]
    if truth["sample"] is not None:
        assert cause["sample"] == truth["sample"]
    reported = explained(bench)
    assert (reported.file, reported.line) == (cause["file"], cause["line"])
    page, text = report_html(bench.record.run), report_md(bench.record.run)
    assert f"{Path(reported.file).name}:{reported.line}" in text
    assert reported.evidence["headline"]
    assert reported.advice
    assert len(page.encode()) < 2_000_000


def explained(bench: Bench) -> Finding:
    """The worst finding that carries a cause."""
    findings = summarize(bench.record.run).findings
    return next(f for f in findings if "cause" in f.evidence)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, id=p.stem, marks=pytest.mark.slow)
        for p in sorted((HERE / "causes" / "healthy").glob("*.py"))
    ],
)
def test_healthy_look_alikes_stay_silent(bench: Bench, path: Path) -> None:
    outcome = bench.guarded(bench.link(path))
    assert outcome.code == 0, outcome.reported
    assert bench.record.events("cause") == []
    assert bench.record.findings() == []
