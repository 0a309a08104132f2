from __future__ import annotations

import os
import re
from dataclasses import replace

import numpy as np
import pytest

from holdfast.detectors import Explanation
from holdfast.detectors.judge import Judge
from holdfast.records.base import event_from
from holdfast.records.nonfinite import TensorStats
from holdfast.records.steps import Quarantined
from holdfast.report.live import (
    CLEAR,
    Live,
    cause_lines,
    event_line,
    finding_line,
    start_line,
)
from holdfast.report.terminal import Terminal
from holdfast.types import Event, Finding, Severity

PLAIN = Terminal()
SCREEN = Terminal(there=True, width=100)


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
    Live(said.append, terminal=PLAIN).show([finding()])
    (line,) = said
    assert line.startswith(
        "step 412  skipped: gradient of a is NaN in 1 of 3 tensors (loss finite)"
    )
    assert line.endswith("  [NUM002]")
    assert "\n" not in line and "\x1b" not in line


@pytest.mark.parametrize("summed_up", [False, True])
def test_the_exception_that_ends_a_run_is_left_to_the_summary(said, summed_up):
    crash = finding(code="RUN001")
    crash = replace(crash, evidence={**crash.evidence, "traceback": "Traceback"})
    Live(said.append, terminal=PLAIN, summed_up=summed_up).show([finding(), crash])
    codes = ["[NUM002]"] if summed_up else ["[NUM002]", "[RUN001]"]
    assert [line[-8:] for line in said] == codes


@pytest.mark.parametrize(
    ("severity", "confidence", "reported"),
    [
        (Severity.WARNING, 1.0, ""),
        (Severity.WARNING, 0.9, " (90 % sure)"),
        (Severity.INFO, 0.6, " (info, 60 % sure)"),
        (Severity.INFO, 1.0, " (info)"),
    ],
)
def test_a_line_says_how_sure_it_is(said, severity, confidence, reported):
    Live(said.append, terminal=PLAIN).show(
        [replace(finding(), severity=severity, confidence=confidence)]
    )
    assert re.search(re.escape(f"(loss finite){reported}") + r" +\[NUM002\]$", said[0])


def test_on_a_terminal_the_line_is_cleared_first(said):
    Live(said.append, terminal=SCREEN).show([finding()])
    assert said[0].startswith(CLEAR + "step 412")


def test_the_first_three_then_powers_of_ten(said):
    live = Live(said.append, terminal=PLAIN)
    reported = []
    for count in range(1, 1201):
        live.show([finding(count, last=412 + count)])
        if said:
            reported.append(count)
            said.clear()
    assert reported == [1, 2, 3, 10, 100, 1000]


def test_large_deliveries_pass_several_marks_at_once(said):
    live = Live(said.append, terminal=PLAIN)
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
    live = Live(said.append, terminal=PLAIN)
    live.show([finding(layer=name) for name in "abcdefgh"])
    assert len(said) == 3
    live.show([finding(code="NUM001")])
    assert len(said) == 4


def test_ranks_are_named_and_told_apart(said):
    live = Live(said.append, terminal=PLAIN)
    live.show([finding(rank=0)])
    live.show([finding(rank=3)])
    assert "rank" not in said[0]
    assert said[1].startswith("step 412  rank 3  skipped")


def test_events_worth_hearing_are_reported_once(said):
    live = Live(said.append, verbose=True, terminal=PLAIN)

    def event(kind, **data):
        return Event(time=0, rank=0, step=0, kind=kind, data=data)

    fused = event("switched_to_fused", cls="Adam")
    live.show([], [event("start"), fused, fused, event("end")])
    assert said == [
        "holdfast: Adam now runs as its fused kernel, which can skip a step by itself "
        "(--no-fused to keep yours)"
    ]
    live.show([], [event("not_covered", what="skip", why="LBFGS")])
    live.show([], [event("holdfast_error", where="detector X", error="KeyError")])
    assert "not covered: skip: LBFGS" in said[1]
    assert "detector X failed and is switched off" in said[2]


def test_quiet_says_nothing(said):
    event = Event(time=0, rank=0, step=0, kind="not_covered")
    Live(said.append, quiet=True, terminal=SCREEN).show([finding()], [event])
    assert not said


def test_with_a_judge(said, make_rows):
    judge, live = Judge(), Live(said.append, terminal=PLAIN)
    for start in range(0, 100, 10):
        rows = make_rows(10, start=start, loss={4: np.nan}, loss_bad={4: 1}, skipped={4: 1})
        live.show(judge.feed(rows))
    assert [line.split("  ")[0] for line in said] == ["step 4", "step 14", "step 24", "step 94"]


def test_standard_error_that_is_gone_is_no_terminal(monkeypatch, said):
    monkeypatch.setattr("sys.stderr", None)
    Live(said.append).show([finding()])
    assert not said[0].startswith(CLEAR)


def test_a_restarted_rank_counts_from_one_again(said):
    live = Live(said.append, terminal=PLAIN)
    live.show([finding(2, last=420)])
    live.show([finding(1, step=3)])
    assert len(said) == 2 and said[1].startswith("step 3  skipped")


def explained(given=None, *, step=413, **data):
    """A finding whose cause is known: log of 0 in model.py, sample 20817."""
    event = Event(time=0, rank=0, step=step, kind="cause", data={
        "opt": 0, "how": "replay", "phase": "forward", "op": "log", "file": "model.py", "line": 88,
        "start": 88, "code": "loss = -torch.log(p).mean()", "sample": 20817,
        "inputs": [TensorStats(min=0, max=1, zeros=1, numel=9).to_dict()], **data,
    })  # fmt: skip
    explanation = Explanation.of(event)
    assert explanation is not None
    return explanation.added_to(given or finding(step=step))


def test_the_cause_is_reported_with_its_fix(said):
    Live(said.append, terminal=PLAIN).show([explained()])
    assert said[0].endswith("[NUM002]")
    assert said[1:] == [
        "step 413  cause: log of 0 at model.py:88, sample 20817",
        "          fix: loss = -torch.log(p.clamp_min(1e-12)).mean()",
    ]


def test_a_cause_that_comes_later_is_reported_alone_and_once(said):
    live = Live(said.append, terminal=SCREEN)
    live.show([finding(step=413)])
    live.show([explained()])
    live.show([explained(finding(2, step=413, last=414))])
    reported = [line.removeprefix(CLEAR) for line in said]
    assert all(line.startswith(CLEAR) for line in said)
    assert [line.split()[2] for line in reported if line.startswith("step")] == [
        "skipped:", "cause:", "again:",
    ]  # fmt: skip


def test_one_cause_of_forty_layers_is_reported_once(said):
    layers = [explained(finding(layer=f"layer{i}", step=413)) for i in range(40)]
    Live(said.append, terminal=PLAIN).show(layers)
    assert sum("cause: " in line for line in said) == 1


def test_a_storm_of_causes_is_no_storm_of_lines(said):
    live = Live(said.append, terminal=PLAIN)
    for step in range(1200):
        live.show([explained(step=step)])
    reported = [line for line in said if "cause: " in line]
    assert [int(line.split()[1]) + 1 for line in reported] == [1, 2, 3, 10, 100, 1000]


def test_the_fix_is_reported_in_words_where_no_line_says_it():
    first, second = cause_lines(explained(code="", sample=None))
    assert first == "step 413  cause: log of 0 at model.py:88"
    assert second == "          fix: 1 of 9 values that go into log is 0: clamp the argument"
    long = "x = torch.log(p)" + " + b" * 40
    assert cause_lines(explained(code=long))[1].startswith("          fix: 1 of 9 values")


def test_a_sample_is_named_once_and_an_unknown_place_not_at_all():
    first, _ = cause_lines(explained(phase="input", op="", file="", line=0))
    assert first == "step 413  cause: sample 20817 holds NaN or inf"


def test_the_rank_is_named_with_the_cause():
    first, _ = cause_lines(explained(finding(rank=3)))
    assert first.startswith("step 413  rank 3  cause: log of 0")


def test_paths_below_the_working_directory_are_short(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here, elsewhere = tmp_path / "src" / "model.py", tmp_path.parent / "model.py"
    assert " at src/model.py:88," in cause_lines(explained(file=str(here)))[0]
    assert f" at {elsewhere}:88," in cause_lines(explained(file=str(elsewhere)))[0]


def test_a_working_directory_that_is_gone(monkeypatch):
    def gone():
        raise FileNotFoundError

    monkeypatch.setattr("os.getcwd", gone)
    elsewhere = os.path.join(os.sep, "elsewhere", "model.py")
    assert f" at {elsewhere}:88," in cause_lines(explained(file=elsewhere))[0]


@pytest.mark.parametrize("broken", [{"headline": 5}, {"cause": "?"}, {"cause": {}, "diff": 7}])
def test_evidence_of_another_kind_is_passed_over(said, broken):
    known = explained()
    strange = replace(known, evidence={**known.evidence, **broken})
    Live(said.append, terminal=PLAIN).show([strange])
    assert len(said) == (3 if "diff" in broken else 1)


def test_a_cause_reaches_the_screen_through_a_judge(said, make_rows):
    judge, live = Judge(), Live(said.append, terminal=PLAIN)
    live.show(judge.feed(make_rows(9, loss={4: np.nan}, loss_bad={4: 1}, skipped={4: 1})))
    data = {"opt": 0, "how": "replay", "phase": "forward", "op": "log", "file": "a.py", "line": 3}
    event = Event(time=0, rank=0, step=4, kind="cause", data=data)
    live.show(judge.feed(None, [event]), [event])
    reported = [line.split(":")[0] for line in said]
    assert reported == ["step 4  skipped", "step 4  cause", "        fix"]


def test_a_batch_that_is_handed_out_twice_is_announced(make_event):
    line = event_line(make_event("replay", 0, 7, batches=1))
    assert line.startswith("step 7  running its batch again to find the line")
    assert "--no-replay" in line


POLICY = Event(time=0, rank=0, step=0, kind="policy", data={"rules": ["NUM001: skip (often)"]})


def test_one_short_line_before_the_first_finding(said):
    start = start_line("train.py", "runs/first", acts=True)
    fused = Event(time=0, rank=0, step=0, kind="switched_to_fused", data={"cls": "Adam"})
    live = Live(said.append, start=start, terminal=PLAIN)
    live.show([], [POLICY, fused])
    live.show([], [replace(POLICY, rank=1)])
    assert said == ["holdfast: guarding train.py, recording to runs/first"]
    said.clear()
    Live(said.append, start=start, verbose=True, terminal=PLAIN).show([], [POLICY, fused])
    assert len(said) == 3 and said[1].startswith("holdfast: policy: NUM001: skip;")
    assert "only watching" in start_line("train.py", "x", acts=False)


@pytest.mark.parametrize("width", [40, 60, 88, 100])
def test_lines_fit_the_terminal(said, width):
    screen = Terminal(there=True, width=width, colour=True)
    live = Live(said.append, start="holdfast: " + "word " * 30, terminal=screen)
    live.show([explained(), finding(layer="encoder.layers.11.self_attn.out_proj.weight")], [POLICY])
    rows = re.sub(r"\x1b\[[0-9;]*[mK]|\r", "", "\n".join(said)).splitlines()
    assert len(rows) > 4 and max(map(len, rows)) <= max(width, 48 + 10), rows
    assert sum("[NUM002]" in row for row in rows) == 2
    # What is wrapped stands below the text, not below the step.
    assert all(re.match(r"step \d|holdfast:|  +\S", row) for row in rows)
    assert any("\x1b[1;31m[NUM002]" in text for text in said)


def test_colours_are_for_terminals_that_have_them(said):
    Live(said.append, terminal=Terminal(there=True, width=88)).show([finding()])
    assert re.findall(r"\x1b\[[^m]*m", said[0]) == []
    assert said[0].removeprefix(CLEAR).split() == finding_line(finding()).split()


def test_a_sample_is_quarantined_below_its_finding(said):
    event = event_from(412, Quarantined(index=7, reason="div"), 0)
    Live(said.append, terminal=PLAIN).show([finding()], [event])
    assert "skipped" in said[0] and "quarantined" in said[1]


def test_the_first_line_stands_before_health_lines(said, make_rows):
    live = Live(said.append, health=5, start="holdfast: guarding t.py", terminal=PLAIN)
    live.show_health("r0", 0, make_rows(12))
    assert said[0] == "holdfast: guarding t.py" and len(said) > 1
    live.show([], [Event(time=0.0, rank=0, step=0, kind="policy", data={"rules": []})])
    assert said.count("holdfast: guarding t.py") == 1
