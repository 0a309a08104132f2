"""The summary of a crash: its traceback stands above, so it is short, and the answer is last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.records.recovery import LastStateResult
from holdfast.report import end_summary, plain, report_html, report_lines, summarize
from holdfast.run import Run
from holdfast.types import Event

from .test_crash import RAISED

ORDINARY = {k: v for k, v in RAISED.items() if k not in ("process", "called_from", "sample_file")}
FILE = "checkpoints/step-0000000011.r0.safetensors"
SAVED = LastStateResult(why="ValueError", source="live", file=FILE, bytes=3 << 20).to_dict()


@pytest.fixture
def crash(make_run: Any, tmp_path: Path) -> Any:
    def made(data: dict[str, Any], **given: Any) -> Run:
        events = [
            Event(time=9.0, rank=0, step=12, kind="exception", data=data),
            Event(time=9.1, rank=0, step=11, kind="last_state", data=SAVED),
        ]
        return make_run(events=events, exit_code=1, **given)

    return made


def test_it_is_short_and_the_answer_is_last(crash: Any) -> None:
    said = end_summary(crash(ORDINARY))
    lines = said.splitlines()
    assert len(lines) <= 12
    assert lines[0].startswith("holdfast: crashed with RuntimeError after ")
    assert said.count("net.0 (Linear) expects 100 features and gets 392") == 1
    assert "mat1 and mat2" not in said, "python has printed it right above"
    (answer,) = [i for i, line in enumerate(lines) if line.startswith("  RUN001  cause: net.0")]
    assert all(line.startswith(" " * 10) for line in lines[answer + 1 :])
    assert "nn.Linear(392, …)" in " ".join(said.split()[-40:])


def test_sample_and_worker_are_not_lost(crash: Any) -> None:
    said = " ".join(end_summary(crash(RAISED)).split())
    assert "loader worker 2" in said and "sample 481" in said and "cat.png" in said


def test_without_a_cause_the_exception_is_the_answer(crash: Any) -> None:
    data = ORDINARY | {"type": "ValueError", "message": "its own", "operands": [], "module": None}
    said = end_summary(crash(data))
    assert said.count("its own") == 1 and "  RUN001  ValueError: its own at " in said


def test_a_long_exception_keeps_its_line(crash: Any) -> None:
    data = ORDINARY | {"type": "ValueError", "message": "its own " * 100, "operands": []}
    said = end_summary(crash(data | {"module": None}))
    assert " at model.py:16" in " ".join(said.split())
    assert len(said.splitlines()) <= 12 and "…" in said, "python has printed all of it right above"


def test_a_cut_exception_says_so(crash: Any) -> None:
    numbers = ", ".join(f"row {i} has 0.3102" for i in range(40))
    odd = {"type": "ValueError", "message": numbers, "operands": [], "module": None}
    run = crash(ORDINARY | odd)
    verdict = plain(report_lines(summarize(run))).partition("Findings")[0]
    assert "…" in verdict and "row 39 has 0.3102 at" in " ".join(verdict.split())
    (found,) = summarize(run).findings
    assert found.evidence["error"].endswith("…")


def test_the_page_has_the_cause_first_and_the_exception_once(crash: Any) -> None:
    page = report_html(crash(ORDINARY | {"traceback": "Traceback"}))
    body = page[page.index("<body") :]
    assert body.count("mat1 and mat2 shapes cannot be multiplied") == 1
    assert body.count("expects 100 features and gets 392") == 1
    assert body.index("expects 100") < body.index('id="findings"')
    assert 'id="loss"' not in body or body.index('id="findings"') < body.index('id="loss"')
