"""Scripts with one numerical fault each, written without knowledge of the exams: the line.

What is true about each stands in ``scripts/causes/manifest.json``. Ten are part of every test
run, all of them of ``make prove``; ``benchmarks/provenance.py`` makes the table of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.report import report_html, report_md, summarize
from holdfast.types import Finding

from .conftest import Bench

SCRIPTS = Path(__file__).parent / "scripts" / "causes"
TRUTH: dict[str, dict[str, Any]] = json.loads((SCRIPTS / "manifest.json").read_text())
SAMPLED = {
    "amp_gated_ffn.py",
    "box_regression.py",
    "ecg_beats.py",
    "finetune_intents.py",
    "gan_minibatch_features.py",
    "review_attention_pool.py",
    "sft_prompt_masking.py",
    "train_depth_completion.py",
    "unit_gradient_head.py",
    "unrolled_relu_rnn.py",
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in SAMPLED else pytest.mark.slow, id=n[:-3]) for n in TRUTH],
)
def test_the_line_is_named(bench: Bench, name: str) -> None:
    truth = TRUTH[name]
    outcome = bench.guarded(str(SCRIPTS / name))
    assert outcome.code == 0, outcome.told
    assert bench.record.events("holdfast_error") == []
    causes = [event.data for event in bench.record.events("cause")]
    assert causes, "no cause was found"
    cause = causes[0]
    assert cause["phase"] == truth["phase"]
    if truth["phase"] in ("forward", "backward"):
        assert Path(cause["file"]).name == truth["file"]
        assert cause["line"] in truth["lines"]
    if truth["layer"]:
        assert cause["layer"] == truth["layer"]
    if truth["sample"] is not None:
        assert cause["sample"] == truth["sample"]
    told = explained(bench)
    assert (told.file, told.line) == (cause["file"], cause["line"])
    page, text = report_html(bench.record.run), report_md(bench.record.run)
    assert f"{Path(told.file).name}:{told.line}" in text
    assert told.evidence["headline"]
    assert told.advice
    assert len(page.encode()) < 2_000_000


def explained(bench: Bench) -> Finding:
    """The worst finding that carries a cause."""
    findings = summarize(bench.record.run).findings
    return next(f for f in findings if "cause" in f.evidence)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, id=p.stem, marks=[] if p.stem == "missing_values" else pytest.mark.slow)
        for p in sorted((SCRIPTS / "healthy").glob("*.py"))
    ],
)
def test_healthy_look_alikes_stay_silent(bench: Bench, path: Path) -> None:
    outcome = bench.guarded(str(path))
    assert outcome.code == 0, outcome.told
    assert bench.record.events("cause") == []
    assert bench.record.findings() == []
