from __future__ import annotations

import numpy as np
import pytest

from holdfast.judge import Judge
from holdfast.report.live import CLEAR, Live, finding_line
from holdfast.types import Event, Finding, Severity


def finding(count=1, *, step=412, last=None, code="NUM002", layer="a", rank=0):
    return Finding(
        code=code, name="x", severity=Severity.ERROR, step=step, last_step=last or step,
        rank=rank, advice="look",
        message=f"step {step} skipped: gradient of {layer} is NaN in 1 of 3 tensors (loss finite)",
        evidence={"count": count, "layer": layer, "steps": [step], "skipped": count},
    )  # fmt: skip


@pytest.fixture
def said():
    return []


def test_one_line_as_in_the_design(said):
    Live(said.append, terminal=False).show([finding()])
    (line,) = said
    assert line.startswith(
        "step 412  skipped: gradient of a is NaN in 1 of 3 tensors (loss finite)"
    )
    assert line.endswith("  [NUM002]")
    assert "\n" not in line and "\x1b" not in line


def test_on_a_terminal_the_line_is_cleared_first(said):
    Live(said.append, terminal=True).show([finding()])
    assert said[0].startswith(CLEAR + "step 412")


def test_the_first_three_then_powers_of_ten(said):
    live = Live(said.append, terminal=False)
    told = []
    for count in range(1, 1201):
        live.show([finding(count, last=412 + count)])
        if said:
            told.append(count)
            said.clear()
    assert told == [1, 2, 3, 10, 100, 1000]


def test_large_deliveries_pass_several_marks_at_once(said):
    live = Live(said.append, terminal=False)
    live.show([finding(5, last=416)])
    live.show([finding(9, last=420)])
    live.show([finding(350, last=900)])
    live.show([finding(999, last=1500)])
    assert len(said) == 2
    assert "again" not in said[0] and "again" in said[1]


def test_again_says_how_often_and_since_when(said):
    line = finding_line(finding(40, last=977), again=True)
    assert line.startswith("step 977  again: gradient of a is NaN in 1 of 3 tensors (40 steps ")
    assert "between 412 and 977" in line


def test_layers_of_one_code_share_the_limit_and_codes_do_not(said):
    live = Live(said.append, terminal=False)
    live.show([finding(layer=name) for name in "abcdefgh"])
    assert len(said) == 3
    live.show([finding(code="NUM001")])
    assert len(said) == 4


def test_ranks_are_named_and_told_apart(said):
    live = Live(said.append, terminal=False)
    live.show([finding(rank=0)])
    live.show([finding(rank=3)])
    assert "rank" not in said[0]
    assert said[1].startswith("step 412  rank 3  skipped")


def test_events_worth_hearing_are_told_once(said):
    live = Live(said.append, terminal=False)

    def event(kind, **data):
        return Event(time=0, rank=0, step=0, kind=kind, data=data)

    fused = event("switched_to_fused", cls="Adam")
    live.show([], [event("start"), fused, fused, event("end")])
    assert said == [
        "holdfast: Adam now runs as its fused kernel, which can leave a step out by itself "
        "(--no-fused to keep yours)"
    ]
    live.show([], [event("not_covered", what="skip", why="LBFGS")])
    live.show([], [event("holdfast_error", where="detector X", error="KeyError")])
    assert "not covered: skip: LBFGS" in said[1]
    assert "detector X failed and is switched off" in said[2]


def test_quiet_says_nothing(said):
    event = Event(time=0, rank=0, step=0, kind="not_covered")
    Live(said.append, quiet=True, terminal=True).show([finding()], [event])
    assert not said


def test_with_a_judge(said, make_rows):
    judge, live = Judge(), Live(said.append, terminal=False)
    for start in range(0, 100, 10):
        rows = make_rows(10, start=start, loss={4: np.nan}, loss_bad={4: 1}, skipped={4: 1})
        live.show(judge.feed(rows))
    assert [line.split("  ")[0] for line in said] == ["step 4", "step 14", "step 24", "step 94"]


def test_standard_error_that_is_gone_is_no_terminal(monkeypatch, said):
    monkeypatch.setattr("sys.stderr", None)
    Live(said.append).show([finding()])
    assert not said[0].startswith(CLEAR)


def test_a_restarted_rank_counts_from_one_again(said):
    live = Live(said.append, terminal=False)
    live.show([finding(2, last=420)])
    live.show([finding(1, step=3)])
    assert len(said) == 2 and said[1].startswith("step 3  skipped")
