from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.memory_events import memory_event

from holdfast.detectors import ALL, HISTORY, Detector
from holdfast.detectors.case import REMEMBERED
from holdfast.detectors.judge import Judge, ranked
from holdfast.detectors.nonfinite_loss import NonfiniteLoss
from holdfast.records.nonfinite import Cause, TensorStats
from holdfast.run import decode, encode
from holdfast.types import Event, Finding, Severity

NAN = np.nan


# A fixture that only makes rows is as good as new for every example.
UNHURRIED: Any = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


def names(opt=0, step=0, layers=("a", "b", "c"), buffers=("bn.running_mean",)):
    data = {"opt": opt, "layers": list(layers), "buffers": list(buffers)}
    return Event(time=0.0, rank=0, step=step, kind="optimizer", data=data)


def poison(rows, noise, share=0.02):
    """Put every kind of fault into rows, at random."""
    count = len(rows)

    def some(p=share):
        return noise.random(count) < p

    rows["opt"] = noise.integers(0, 2, count)
    rows["step"] = np.arange(count) // 2
    for flag, value in (("loss_bad", "loss"), ("grad_bad", "grad_norm")):
        hit = some()
        rows[flag][hit], rows[value][hit] = 1, NAN
    rows["grad_layer"] = np.where(rows["grad_bad"] > 0, noise.integers(0, 3, count), -1)
    rows["input_bad"][some()] = 1
    rows["param_bad"][some(share / 4)] = 1
    rows["param_bad"][some(share / 2)] = 0
    rows["buffer_bad"][some()] = 1
    rows["buffer_layer"] = np.where(rows["buffer_bad"] > 0, 0, -1)
    rows["skipped"] = (rows["loss_bad"] > 0) & (noise.random(count) < 0.8)
    fp16 = np.arange(count) > count - 60
    rows["scale"] = np.where(fp16, 2.0 ** noise.integers(-2, 4, count), NAN)
    rows["scaler_skipped"] = fp16 & (noise.random(count) < 0.5)
    return rows


def cause(step, opt=0, how="replay", line=88, **more):
    """A ``cause`` event: log of 0 in train.py."""
    known = {
        "opt": opt, "how": how, "observed": step + 1, "phase": "forward", "op": "log",
        "file": "train.py", "line": line, "function": "f", "code": "loss = -torch.log(p).mean()",
        "start": line, "excerpt": ((line, "    loss = -torch.log(p).mean()"),),
        "inputs": (TensorStats(min=0.0, max=1.0, zeros=1, numel=9, dtype="float32"),),
        "output": TensorStats(inf=1, numel=9, dtype="float32"), "dtype": "float32",
        "sample": 20817, "row": 5, "samples_bad": 1, **more,
    }  # fmt: skip
    data = Cause(**known).to_dict()
    return Event(time=0.0, rank=0, step=step, kind="cause", data=data)


def causes_for(rows, noise):
    """A cause for some of the bad rows, several for a few, of different certainty."""
    bad = np.flatnonzero((rows["loss_bad"] > 0) | (rows["grad_bad"] > 0))
    return [
        cause(int(rows["step"][i]), int(rows["opt"][i]), str(how), line=1 + n % 7)
        for n, i in enumerate(bad.tolist() * 2)
        for how in noise.choice(["replay", "next", "look", "?"], int(noise.integers(0, 2)))
    ]


def batches_for(rows):
    return [
        {
            "step": int(s),
            "opt": 0,
            "indices": [int(s) * 10, int(s) * 10 + 1],
            "bad": [["x", [1], [int(s) * 10 + 1]]],
        }
        for s in np.unique(rows["step"][rows["input_bad"] > 0])
    ]


def live(rows, events, batches, cuts, causes=(), delays=()):
    """Deliver in pieces, each batch and event with the rows of its step.

    A cause comes as many rows later as ``delays`` says, or earlier.
    """
    judge = Judge()
    arrivals = np.searchsorted(rows["step"], [b["step"] for b in batches])
    heard = np.searchsorted(rows["step"], [e.step for e in events])
    known = np.searchsorted(rows["step"], [e.step for e in causes]) + np.array(delays, dtype=int)
    edges = [0, *sorted(cuts), max([len(rows), *known.tolist()]) + 1]
    heard, events = [*heard, *np.maximum(known, 0)], [*events, *causes]
    last: dict = {}
    for start, stop in pairwise(edges):
        changed = judge.feed(
            rows[start:stop],
            [e for e, at in zip(events, heard, strict=True) if start <= at < stop],
            [b for b, at in zip(batches, arrivals, strict=True) if start <= at < stop],
        )
        last |= {f.key: f for f in changed}
    assert ranked(last.values(), ALL) == judge.findings, "what was announced is what is known"
    assert not judge.errors
    return judge.findings


@settings(max_examples=30, **UNHURRIED)
@given(data=st.data(), seed=st.integers(0, 10**6), count=st.integers(1, 120))
def test_live_and_offline_agree(make_rows, data, seed, count):
    rows = poison(make_rows(count), np.random.default_rng(seed), share=0.15)
    events = [names(0), names(1), names(0, step=count // 4, layers=("x", "y", "z", "w"))]
    batches = batches_for(rows)
    cuts = data.draw(st.lists(st.integers(0, count), max_size=20))
    offline = Judge()
    offline.feed(rows, events, batches)
    assert live(rows, events, batches, cuts) == offline.findings
    if rows["loss_bad"].any():
        assert offline.findings
    causes = causes_for(rows, np.random.default_rng(seed))
    delays = data.draw(st.lists(st.integers(-9, 99), min_size=len(causes), max_size=len(causes)))
    offline = Judge()
    offline.feed(rows, [*events, *causes], batches)
    assert live(rows, events, batches, cuts, causes, delays) == offline.findings


@settings(max_examples=5, **UNHURRIED)
@given(data=st.data(), seed=st.integers(0, 10**6))
@pytest.mark.slow
def test_live_and_offline_agree_beyond_the_history(make_rows, data, seed):
    count = 2 * HISTORY + 900
    rows = poison(make_rows(count), np.random.default_rng(seed), share=0.003)
    events, batches = [names(0), names(1)], batches_for(rows)
    cuts = data.draw(st.lists(st.integers(0, count), max_size=6))
    whole = live(rows, events, batches, [])
    assert live(rows, events, batches, cuts) == whole
    assert live(rows, events, batches, range(0, count, 37)) == whole


def test_merges_what_is_the_same_fault(make_rows):
    bad = dict.fromkeys(range(2, 42), 1)
    judge = Judge()
    judge.feed(make_rows(50, loss_bad=bad, loss=dict.fromkeys(bad, NAN), skipped={2: 1, 3: 1}))
    (finding,) = judge.findings
    assert (finding.step, finding.last_step) == (2, 41)
    assert finding.evidence["count"] == 40
    assert finding.evidence["skipped"] == 2
    assert finding.evidence["steps"] == list(range(2, 2 + REMEMBERED))
    assert finding.severity is Severity.ERROR, "the worst of all sightings"
    assert finding.message.startswith("step 2 skipped"), "the words of the first"


def test_layers_and_optimizers_are_told_apart(make_rows):
    rows = make_rows(6, grad_bad=1, grad_layer=[0, 1, 1, 0, 0, 1], opt=[0, 0, 0, 0, 1, 1])
    judge = Judge()
    judge.feed(rows, [names(0), names(1)])
    found = {(f.evidence["opt"], f.evidence["layer"]): f.evidence["count"] for f in judge.findings}
    assert found == {(0, "a"): 2, (0, "b"): 2, (1, "a"): 1, (1, "b"): 1}


def test_samples_of_all_sightings_are_collected(make_rows):
    rows = make_rows(6, input_bad={1: 1, 4: 1}, loss_bad={1: 1, 4: 1})
    batches = [{"step": s, "indices": [s * 10], "bad": [["x", [0], [s * 10]]]} for s in (1, 4)]
    judge = Judge()
    judge.feed(rows, (), batches)
    assert judge.findings[0].evidence["samples"] == [10, 40]


def test_returns_only_what_changed(make_rows):
    judge = Judge()
    assert judge.feed(make_rows(5)) == []
    (first,) = judge.feed(make_rows(5, start=5, loss_bad={0: 1}))
    assert first.evidence["count"] == 1
    assert judge.feed(make_rows(5, start=10)) == []
    (again,) = judge.feed(make_rows(5, start=15, loss_bad={0: 1}))
    assert again.evidence["count"] == 2
    assert judge.feed() == []


class Noted(Detector):
    """A record says that something is wrong."""

    code, name, severity, since = "XYZ001", "noted", Severity.WARNING, "0.1"
    needs, judges_events = ("loss",), True

    def check(self, window):
        known = [e.step for e in window.events if e.kind == "numbers" and e.step <= window.step]
        if not known or (len(window) > 1 and known[-1] <= window.rows["step"][-2]):
            return None
        rate = {"rate": window.value("lr")}
        return self.finding(window, f"noted at {known[-1]}", "look there", evidence=rate)


def test_what_is_noted_after_the_last_row_is_judged_at_the_end(make_rows):
    """Live and from a record alike; what the rows say is not told twice."""
    rows = make_rows(10, loss_bad={9: 1}, loss={9: NAN})
    notes = [Event(time=0.0, rank=0, step=step, kind="numbers") for step in (5, 10, 12)]
    offline, live = (Judge([NonfiniteLoss, Noted]) for _ in range(2))
    offline.feed(rows, notes)
    for start in range(0, 10, 3):
        live.feed(rows[start : start + 3], [e for e in notes if start <= e.step < start + 3])
    live.feed(None, notes[-1:])
    before = {f.code: f.evidence["count"] for f in live.findings}
    assert before == {"NUM001": 1, "XYZ001": 1}
    (changed,) = live.close()
    assert offline.close() == [changed]
    assert live.findings == offline.findings and not live.errors
    assert changed.evidence["steps"] == [5, 10, 12] and changed.last_step == 12
    assert changed.evidence["rate"] == pytest.approx(1e-3), "the learning rate goes on"
    assert {f.code: f.evidence["count"] for f in live.findings} == {"NUM001": 1, "XYZ001": 3}
    assert live.close() == [], "once"


def split_at(step: int) -> Event:
    return memory_event("batch_split", step, error="CUDA out of memory", seconds=0.1)


@pytest.mark.parametrize("rows_before", [3, 4, 8])
def test_an_event_that_comes_after_the_row_of_its_step_is_judged_like_one_before(
    make_rows, rows_before
):
    rows = make_rows(8)
    at_once = Judge()
    at_once.feed(rows, [split_at(2)])
    late = Judge()
    assert late.feed(rows[:rows_before]) == []
    reported = late.feed(None, [split_at(2)])
    assert [(f.code, f.step) for f in reported] == [("MEM008", 2)]
    late.feed(rows[rows_before:], [split_at(4)])  # the same fault is told once
    assert late.feed(None, [split_at(2)]) == []
    assert late.findings == at_once.findings and late.close() == []


def test_only_who_judges_events_is_asked_at_the_end_of_a_run(make_rows):
    late = Event(time=0.0, rank=0, step=3, kind="numbers")
    without_rows, silent = Judge([Noted]), Judge([NonfiniteLoss])
    without_rows.feed(None, [late])
    silent.feed(make_rows(2, loss_bad={1: 1}), [late])
    assert [f.step for f in without_rows.close()] == [3], "a run that died before its first row"
    assert silent.close() == []


def test_ranking_severity_then_cause_then_step(make_rows):
    rows = make_rows(
        6,
        loss_bad={1: 1, 4: 1}, grad_bad={0: 1}, input_bad={4: 1},
        skipped={0: 1, 4: 1},
    )  # fmt: skip
    judge = Judge()
    judge.feed(rows)
    assert [f.code for f in judge.findings] == ["NUM001", "NUM005", "NUM002"]
    assert [f.severity for f in judge.findings] == [
        Severity.ERROR, Severity.WARNING, Severity.WARNING,
    ]  # fmt: skip


def test_a_consequence_stands_behind_its_cause(make_rows):
    rows = make_rows(9, loss={4: NAN}, loss_bad={4: 1}, param_bad={5: 2})
    judge = Judge()
    judge.feed(rows)
    assert [f.code for f in judge.findings] == ["NUM001", "NUM003"]


class Broken(Detector):
    """Raises at step 3."""

    code, name, severity, needs, since = "TST001", "broken", Severity.INFO, ("loss",), "0.1"

    def check(self, window) -> Finding | None:
        if window.step == 3:
            raise ZeroDivisionError("by design")
        return self.finding(window, "1 seen", "nothing to do")


def test_a_detector_that_raises_is_switched_off_and_told(make_rows):
    judge = Judge([Broken, NonfiniteLoss], rank=5)
    judge.feed(make_rows(6, loss_bad={4: 1}))
    judge.feed(make_rows(6, start=6))
    (event,) = judge.errors
    assert (event.kind, event.rank) == ("holdfast_error", 5)
    assert "TST001" in event.data["where"] and "ZeroDivisionError" in event.data["error"]
    counts = {f.code: f.evidence["count"] for f in judge.findings}
    assert counts == {"TST001": 3, "NUM001": 1}, "the others go on, nothing is taken back"


def test_a_detector_cannot_change_the_rows(make_rows):
    class Vandal(Broken):
        code = "TST002"

        def check(self, window):
            window.rows["loss"][:] = 0
            return None

    judge = Judge([Vandal])
    rows = make_rows(3)
    judge.feed(rows)
    assert judge.errors and rows["loss"].all()


def test_events_are_seen_from_their_step_on(make_rows):
    class Listener(Broken):
        code = "TST003"

        def check(self, window):
            heard = [e.step for e in window.events]
            return replace(self.finding(window, "1", "x"), evidence={"key": str(heard)})

    event = Event(time=0.0, rank=0, step=2, kind="signal")
    judge = Judge([Listener])
    judge.feed(make_rows(4), [event])
    spans = {f.evidence["key"]: (f.step, f.last_step) for f in judge.findings}
    assert spans == {"[]": (0, 1), "[2]": (2, 3)}


def test_detectors_without_their_columns_are_not_asked(make_rows):
    judge = Judge([Broken])
    judge.feed(make_rows(6)[["step", "time", "grad_norm"]])
    assert not judge.errors and not judge.findings


def test_key_of_findings_from_elsewhere():
    finding = Finding(
        code="X", name="x", severity=Severity.INFO, step=1, message="m", advice="a",
        evidence={"key": "worker 3"},
    )  # fmt: skip
    assert finding.key == ("X", 0, "worker 3")
    assert replace(finding, evidence={}).key == ("X", 0, "")


@pytest.mark.parametrize("count", [0, 1])
def test_tiny_deliveries(make_rows, count):
    judge = Judge()
    assert judge.feed(make_rows(count)) == []


def bad_losses(make_rows, *steps, count=9, **columns):
    bad = dict.fromkeys(steps, 1)
    return make_rows(count, loss_bad=bad, loss=dict.fromkeys(steps, NAN), **columns)


def test_a_cause_gives_place_remedy_and_evidence(make_rows):
    judge = Judge()
    event = cause(4)
    judge.feed(bad_losses(make_rows, 4), [event])
    (finding,) = judge.findings
    assert (finding.code, finding.file, finding.line) == ("NUM001", "train.py", 88)
    assert finding.advice.endswith("torch.log(p.clamp_min(1e-12))")
    assert finding.evidence["headline"] == "log of 0"
    assert "+    loss = -torch.log(p.clamp_min(1e-12)).mean()" in finding.evidence["diff"]
    assert finding.evidence["cause"] == {"step": 4, **event.data}
    assert finding.evidence["count"] == 1, "the detector's own evidence stays"
    assert Finding.from_dict(decode(encode(finding.to_dict()))) == finding


@pytest.mark.parametrize("rows_before", [0, 3, 9, 2 * HISTORY])
def test_a_cause_may_come_at_any_time(make_rows, rows_before):
    offline, judge = Judge(), Judge()
    rows = bad_losses(make_rows, 4, 7, count=2 * HISTORY)
    offline.feed(rows, [cause(4)])
    judge.feed(rows[:rows_before])
    assert not any("cause" in f.evidence for f in judge.findings)
    reported = judge.feed(None, [cause(4)])
    assert [f.evidence.get("headline") for f in reported] == (
        ["log of 0"] if rows_before > 4 else []
    )
    judge.feed(rows[rows_before:])
    assert judge.findings == offline.findings
    assert judge.findings[0].file == "train.py" and judge.findings[0].evidence["count"] == 2
    assert judge.feed(None, [cause(4)]) == [], "nothing new"


def test_a_cause_stays_with_its_optimizer_step_and_family(make_rows):
    rows = bad_losses(make_rows, 2, 5, 6, opt=[0, 0, 0, 0, 0, 1, 0, 0, 0])
    judge = Judge([NonfiniteLoss, Broken])
    judge.feed(rows, [cause(2, opt=1), cause(3), cause(5, opt=1)])
    explained = {(f.code, f.evidence["opt"]) for f in judge.findings if "cause" in f.evidence}
    assert explained == {("NUM001", 1)}
    plain = next(f for f in judge.findings if f.key == ("NUM001", 0, ""))
    assert not plain.file and not {"headline", "diff"} & set(plain.evidence)


def test_updates_by_hand_have_the_cause_that_no_optimizer_asked_for(make_rows):
    judge = Judge()
    judge.feed(bad_losses(make_rows, 4), [cause(4, opt=-1)])
    assert [f.evidence["headline"] for f in judge.findings] == ["log of 0"]


def test_every_layer_on_that_step_gets_the_cause(make_rows):
    rows = make_rows(6, grad_bad={2: 1, 3: 1}, grad_layer={2: 0, 3: 1}, loss_bad={2: 1})
    judge = Judge()
    judge.feed(rows, [names(0)])
    changed = judge.feed(None, [cause(2), cause(3)])
    assert {f.code for f in changed} == {"NUM001", "NUM002"}
    assert all(f.evidence["cause"]["step"] == f.step for f in changed)


def test_the_first_cause_counts_unless_a_later_one_is_more_certain(make_rows):
    rows = bad_losses(make_rows, 2, 3, 4, 5)

    def line_after(*events):
        judge = Judge()
        judge.feed(rows)
        for event in events:
            judge.feed(None, [event])
        return judge.findings[0].line

    early, late = cause(2, line=20), cause(4, line=40)
    assert line_after(early, late) == line_after(late, early) == 20
    unsure = cause(2, how="next", line=10)
    assert line_after(unsure, late) == line_after(late, unsure) == 40
    assert line_after(early, cause(2, line=30)) == 20, "the same step twice"


def test_a_cause_stands_beside_the_batch(make_rows):
    judge = Judge()
    event = cause(2, phase="input", op="", code="", file="", line=0)
    batch = {"step": 2, "indices": [77], "bad": [["x", [0], [77]]]}
    judge.feed(make_rows(3, input_bad={2: 1}, loss_bad={2: 1}), [event], [batch])
    (finding,) = judge.findings
    assert finding.code == "NUM005" and finding.evidence["samples"] == [77]
    assert finding.evidence["headline"] == "sample 20817 holds inf"
    assert (finding.file, finding.line) == ("", 0) and "diff" not in finding.evidence


@pytest.mark.parametrize("phase", ["input", "parameter", "unknown"])
def test_a_cause_does_not_change_the_code(make_rows, phase):
    judge = Judge()
    judge.feed(bad_losses(make_rows, 4), [cause(4, phase=phase, op="", layer="head.bias")])
    (finding,) = judge.findings
    assert finding.code == "NUM001" and finding.file == "train.py"
    assert finding.evidence["cause"]["phase"] == phase


JUNK = [
    {}, {"opt": "?"}, {"opt": None, "inputs": 3, "excerpt": [[1], "y"], "line": ""},
    {"opt": 0, "op": ["log"], "code": 5, "sample": {}, "output": [1], "phase": {"a": 1}},
]  # fmt: skip


@pytest.mark.parametrize("data", JUNK)
@pytest.mark.parametrize("step", [4, -1])
def test_a_broken_cause_breaks_nothing(make_rows, data, step):
    judge = Judge()
    judge.feed(None, [Event(time=0.0, rank=0, step=step, kind="cause", data=data)])
    judge.feed(bad_losses(make_rows, 4))
    judge.feed(None, [Event(time=0.0, rank=0, step=step, kind="cause", data=data), cause(4)])
    (event,) = judge.errors
    assert event.data["where"] == "reading an event cause"
    assert judge.findings[0].evidence["headline"] == "log of 0"
    encode(judge.findings[0].to_dict())


def test_a_remedy_that_raises_is_written_down(make_rows, monkeypatch):
    monkeypatch.setattr("holdfast.detectors._remedies.explanation.remedy", lambda data: 1 / 0)
    judge = Judge()
    judge.feed(bad_losses(make_rows, 4), [cause(4)])
    (event,) = judge.errors
    assert event.data == {
        "where": "reading a cause",
        "error": "ZeroDivisionError: division by zero",
    }
    assert judge.findings and "cause" not in judge.findings[0].evidence


def test_lost_time_is_ranked_by_its_share():
    def lost(code: str, share: float | None, step: int) -> Finding:
        evidence = {} if share is None else {"share": share}
        return Finding(
            code=code, name="x", severity=Severity.WARNING, step=step, last_step=step, message="m",
            advice="a", rank=0, evidence=evidence,
        )  # fmt: skip

    little, much, memory = lost("TPT001", 0.2, 5), lost("TPT005", 0.7, 40), lost("MEM001", None, 60)
    assert [f.code for f in ranked([little, much, memory])] == ["MEM001", "TPT005", "TPT001"]


def test_what_is_said_about_a_line_that_grows_follows_from_that():
    def reported(code: str, share: float, line: int, severity: Severity) -> Finding:
        return Finding(
            code=code, name="x", severity=severity, step=3, last_step=3, message="m", advice="a",
            rank=0, file="train.py", line=line, evidence={"share": share},
        )  # fmt: skip

    waits = reported("TPT001", 0.6, 29, Severity.WARNING)
    slower = reported("TPT004", 0.3, 29, Severity.WARNING)
    assert ranked([waits, slower]) == [slower, waits]
    elsewhere = reported("TPT004", 0.3, 40, Severity.WARNING)
    assert ranked([waits, elsewhere]) == [waits, elsewhere]
    meant = reported("TPT004", 0.3, 29, Severity.INFO)
    assert ranked([waits, meant]) == [waits, meant]


def test_what_gets_worse_comes_before_what_is_as_bad_each_time():
    def reported(code: str, **evidence: float) -> Finding:
        return Finding(
            code=code, name="x", severity=Severity.WARNING, step=3, last_step=3, message="m",
            advice="a", rank=0, evidence=evidence,
        )  # fmt: skip

    slower, stall = reported("TPT004", share=0.6), reported("TPT005", share=0.9)
    evaluation, graph = reported("MEM004"), reported("MEM002")
    assert ranked([stall, evaluation, slower, graph]) == [graph, stall, slower, evaluation]
    assert ranked([stall, evaluation]) == [evaluation, stall]


def test_all_samples_that_share_a_cause_are_listed(make_rows):
    rows = bad_losses(make_rows, 2, 4, 6, 8)
    judge = Judge()
    judge.feed(rows, [cause(4, sample=11, samples=[[0, 11]])])
    changed = judge.feed(None, [cause(2, sample=7, samples=[[3, 7]]), cause(6, samples=[[3, 7]])])
    assert [f.evidence["samples"] for f in changed] == [[7, 11]]
    assert judge.feed(None, [cause(8, samples=[[1, 11]])]) == []
    # Another line is another cause.
    judge.feed(None, [cause(8, line=5, samples=[[1, 99]])])
    assert judge.findings[0].evidence["samples"] == [7, 11]


@pytest.mark.parametrize(("bad", "dead"), [(100, False), (101, True), (150, True)])
def test_a_run_that_skips_nearly_everything_is_not_alive(make_rows, bad, dead):
    """More than half of 200 steps: an error that stands on top, with the fix."""
    steps = np.sort(np.random.default_rng(0).permutation(200)[:bad]) + 300
    rows = bad_losses(make_rows, *steps, count=600, skipped=np.isin(np.arange(600), steps))
    judge = Judge([NonfiniteLoss])
    for start in range(0, 600, 50):
        judge.feed(rows[start : start + 50])
    (finding,) = judge.findings
    assert finding.evidence["skipped"] == bad
    assert (finding.severity is Severity.ERROR) is dead
    assert finding.evidence.get("in_vain", False) is dead
    reported = f"{bad} of {steps[-1] + 1} steps skipped, nothing is being learnt: loss is NaN"
    assert (reported in finding.message) is dead
    assert finding.message.startswith(f"step {steps[0]}")
    judge.feed(None, [cause(int(steps[0]))])
    assert "clamp" in judge.findings[0].advice


def test_many_skips_that_are_far_apart_leave_a_run_alive(make_rows):
    steps = np.arange(0, 3000, 3)
    rows = bad_losses(make_rows, *steps, count=3000, skipped=np.isin(np.arange(3000), steps))
    (finding,) = Judge([NonfiniteLoss]).feed(rows)
    assert finding.severity is Severity.WARNING and finding.evidence["skipped"] == 1000


def found(code, step, severity, **evidence):
    about = {"opt": 0, "layer": "", "steps": [step], **evidence}
    return Finding(
        code=code, name="x", severity=severity, step=step, last_step=step, message="", advice="",
        evidence=about,
    )  # fmt: skip


def test_what_teaches_nothing_stands_above_all_errors():
    dead = found("NUM002", 90, Severity.ERROR, in_vain=True)
    assert ranked([found("NUM003", 4, Severity.ERROR), dead])[0] is dead


@pytest.mark.parametrize("code", ["OPT001", "OPT003"])
def test_bad_data_outranks_the_spike_that_follows_from_it(code):
    data = found("NUM005", 40, Severity.WARNING)
    spike = found(code, 60, Severity.ERROR, spike_start=48)
    unrelated = found("MEM001", 10, Severity.WARNING)
    assert ranked([spike, unrelated, data]) == [data, spike, unrelated]
    # Long before, or after: a spike of its own.
    early, late = found("NUM005", 4, Severity.WARNING), found("NUM005", 61, Severity.WARNING)
    assert ranked([spike, early])[0] is spike and ranked([spike, late])[0] is spike
