from __future__ import annotations

import numpy as np
import pytest
from tests.memory_events import memory_event

from holdfast.report import (
    Terminal,
    end_lines,
    end_summary,
    painted,
    plain,
    report_lines,
    summarize,
    write_page,
)

NAN = np.nan


@pytest.fixture
def sick(make_run, make_rows, make_event):
    rows = make_rows(
        40, loss={5: NAN, 9: NAN}, loss_bad={5: 1, 9: 1}, skipped={5: 1, 9: 1}, lr=0.1,
        grad_bad={20: 1}, grad_layer={20: 0}, rss=3e9,
    )  # fmt: skip
    events = [
        make_event("not_covered", 0, 0, what="skipping a bad step", why="LBFGS evaluates often"),
        make_event("holdfast_error", 0, 3, where="loss probe", error="KeyError: 1"),
        make_event("dropped", 0, 3, records=5000),
    ]
    return make_run(rows, events=events, exit_code=-9)


def text(run, width=88):
    return plain(report_lines(summarize(run), width))


def test_the_report_puts_the_verdict_first_then_findings_then_facts(sick):
    reported = text(sick)
    order = [
        str(sick.path), "KILLED    killed by SIGKILL", "2 findings, 2 steps skipped", "Findings",
        "NUM002  nonfinite gradient  error", "NUM001  nonfinite loss  warning", "Not covered",
        "Errors inside holdfast", "Run", "Time per step", "forward",
    ]  # fmt: skip
    places = [reported.find(part) for part in order]
    assert -1 not in places, order[places.index(-1)]
    assert places == sorted(places)


def test_a_finding_is_reported_with_steps_fate_and_next_move(sick):
    reported = text(sick)
    assert "on      steps 5, 9; all were skipped" in reported
    assert "next    look for log, division or softmax" in reported
    assert "encoder.weight" in reported
    assert f"more about it: holdfast explain {summarize(sick).findings[0].code}" in reported


def test_facts(sick):
    reported = text(sick)
    assert "command  train.py --epochs 3" in reported
    assert "holdfast 0.1.0, torch 2.13.0, cpu" in reported.replace("\n           ", " ")
    assert "at most host 2.794 GiB" in reported
    assert "lost     5,000 records" in reported
    assert "too short a run to tell what a step costs" in " ".join(reported.split())


@pytest.mark.parametrize("width", [40, 60, 88, 100])
def test_no_line_is_wider_than_asked_unless_a_word_is(sick, width):
    for line in text(sick, width).splitlines():
        too_long = max(map(len, line.split()), default=0) > width - 20
        assert len(line) <= width or too_long or "█" in line or not line.startswith(" ")


def test_no_wrapped_line_tears_a_number_from_its_unit(sick):
    for width in range(40, 100):
        for line in text(sick, width).splitlines():
            assert not line.strip().startswith("%")


def test_colours_do_not_change_the_words(sick):
    from rich.text import Text

    lines = report_lines(summarize(sick))
    shown = painted(lines)
    assert "\x1b[" in shown
    bare = Text.from_ansi(shown).plain
    assert [line.rstrip() for line in bare.splitlines()] == plain(lines).splitlines()


def test_the_end_summary_is_short_and_says_where_to_look(sick):
    reported = end_summary(sick)
    assert reported.startswith(
        "holdfast: killed by SIGKILL, perhaps out of host memory, after 40 steps."
    )
    assert "2 findings, 2 steps skipped, loss " in reported.replace("\n          ", " ")
    assert "NUM001  step 5 skipped: loss is NaN" in reported
    assert f"holdfast report {sick.path}" in reported
    assert "holdfast explain NUM002" in reported
    assert len(reported.splitlines()) < 25


def test_the_end_summary_of_a_healthy_run_is_two_lines(make_run):
    reported = end_summary(make_run(), Terminal(width=200))
    assert reported.count("\n") == 2
    assert reported.startswith("holdfast: finished after 20 steps. No findings, loss ")
    assert "explain" not in reported


def test_many_findings_of_one_code_are_counted_not_told(make_run, make_rows, make_event):
    rows = make_rows(30, grad_bad=1, grad_layer=np.arange(30))
    names = make_event("optimizer", 0, 0, opt=0, cls="SGD", layers=[f"l{i}" for i in range(30)])
    run = make_run(rows, events=[names])
    reported = text(run)
    assert reported.count("nonfinite gradient") == 3
    assert "27 more findings of this kind" in reported
    assert len(end_lines(summarize(run))) < 20


def test_ranks_are_named_where_there_are_several(make_run, make_rows, record_lane):
    run = make_run(make_rows(9, grad_bad={5: 1}))
    for lane in ("r1", "r2"):
        record_lane(run, make_rows(9, grad_bad={5: 1}), lane=lane)
    record_lane(run, make_rows(9, grad_bad={5: 1}, loss_bad={5: 1}), lane="r4")
    reported = text(run)
    assert "by      rank 4" in reported
    assert "also    NUM002 on ranks 0-2, spread by all-reduce" in reported
    assert "\n     2      9" in reported, "a row for each rank"


def test_a_process_without_last_words_is_pointed_out(make_run):
    assert "ended without a final record" in text(make_run(end=False, exit_code=-9))


def test_nothing_of_the_environment_is_reported(make_run, monkeypatch):
    monkeypatch.setenv("SOME_SECRET", "swordfish")
    run = make_run()
    assert "swordfish" not in text(run) + end_summary(run)


def test_the_cause_and_its_cure_are_reported(incident):
    reported = text(incident())
    assert "cause   log of 0 at src/project/model.py:88" in reported
    assert "data    dataset index 20817 (row 5 of the batch)" in reported
    assert "            -    loss = -torch.log(picked).mean()\n            +    loss" in reported
    assert "@@" not in reported, "the place is said one line above"


def test_the_end_summary_tells_the_cause_and_where_the_page_is(incident):
    run = incident()
    reported = end_summary(run, Terminal(width=200))
    assert "cause: log of 0 at src/project/model.py:88, dataset index 20817" in reported
    assert "\n          +    loss = -torch.log(picked.clamp_min(1e-12)).mean()\n" in reported
    assert f"  report  holdfast report {run.path}\n" in reported
    write_page(run)
    reported = end_summary(run)
    assert f"  report  {run.path}/report.html\n  text    holdfast report {run.path}\n" in reported


def test_the_end_summary_of_a_damaged_run_says_so(incident):
    run = incident()
    next(run.path.glob("steps.r1*")).write_bytes(b"junk")
    assert "damaged r1: steps.r1.000000.bin is not a table" in end_summary(run, Terminal(width=200))


def test_what_modules_need_is_reported_part_by_part(make_run):
    parts = {"weights": 2.0**20, "gradients": 0.0, "activations": 3 * 2.0**30}
    event = memory_event("out_of_memory", 3, modules={"blocks.*.attn": parts})
    reported = text(make_run(events=[event]))
    assert "parts   blocks.*.attn: weights 1 MiB, activations 3 GiB" in reported


def test_the_summary_of_a_run_of_seconds_tells_no_cost(make_run, make_rows):
    summary = summarize(make_run(make_rows(50, guard=5e-3)))
    assert summary.cost is not None and not summary.cost.tells
    assert "Guard cost" not in plain(end_lines(summary))
    long = summarize(make_run(make_rows(9000, guard=5e-3), name="long"))
    assert "Guard cost" in plain(end_lines(long))
