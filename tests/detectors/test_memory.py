"""Findings about memory: one for each line, with the change for that line."""

from __future__ import annotations

import numpy as np
import pytest
from tests.memory_events import memory_event

from holdfast.detectors.judge import Judge
from holdfast.detectors.leaks import TensorLeak
from holdfast.detectors.ranking import explained
from holdfast.types import Severity

GRAPHS = {"graphs": 1}
OBJECTS = {"other_bytes": 1e6}


@pytest.fixture
def judged(make_rows):
    """``judged("growth", code="...")``: what is found of one event in the middle of a run."""

    def judge_one(kind, *, end=False, **data):
        judge = Judge()
        judge.feed(make_rows(8), [memory_event(kind, 20 if end else 4, **data)])
        judge.close()
        assert judge.errors == []
        return judge.findings

    return judge_one


@pytest.fixture
def codes(judged):
    """The codes of what is found of one event."""
    return lambda kind, **data: [finding.code for finding in judged(kind, **data)]


@pytest.mark.parametrize(
    ("kind", "data", "code"),
    [
        ("growth", {}, "MEM001"),
        ("growth", GRAPHS, "MEM002"),
        ("growth", GRAPHS | {"bytes": 0.0}, "MEM002"),
        ("growth", OBJECTS, "MEM005"),
        ("growth", GRAPHS | {"single": True, "itself": True}, "MEM002"),
        ("growth", {"single": True, "itself": True}, "MEM001"),
        ("graph_chain", {}, "MEM002"),
        ("graph_chain", {"held": 500_000_000, "in_use": 1_000_000_000}, "MEM002"),
        ("graph_chain", {"fed": True}, "MEM003"),
        ("graph_chain", {"fed": True, "seen": "guess"}, "MEM003"),
    ],
)
def test_exactly_one_detector_claims_a_measurement(codes, kind, data, code):
    assert codes(kind, **data) == [code]


def test_little_that_past_steps_hold_is_not_why_memory_ran_out(codes):
    assert codes("graph_chain", held=5_000_000, in_use=1_000_000_000) == []


@pytest.mark.parametrize(
    "made_of", [{}, GRAPHS | {"single": True, "itself": True}, OBJECTS], ids=str
)
@pytest.mark.parametrize(
    "harmless",
    [
        {"capped": True},
        {"bound": 100},
        {"bytes": 4096.0, "steps": 1000},
        {"bytes": 40_000.0, "steps": 39},
        {"single": True, "seen": "source", "itself": False},
        {"shrinks": True, "steps": 95},
        {"tested": True, "steps": 95},
        {"shrinks": True, "steps": 199, "pass_steps": 100},
    ],
    ids=str,
)
def test_growth_that_is_not_believed(codes, made_of, harmless):
    assert codes("growth", **made_of | harmless) == []


@pytest.mark.parametrize(
    "clear",
    [
        {"bytes": 40_000.0, "steps": 40},
        {"shrinks": True, "steps": 96},
        {"shrinks": True, "steps": 200, "pass_steps": 100},
    ],
    ids=str,
)
def test_growth_that_is_believed_after_all(codes, clear):
    assert codes("growth", **clear) == ["MEM001"]


def test_a_single_tensor_that_is_another_one_each_time(codes):
    assert codes("growth", single=True, itself=False) == []


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("growth", GRAPHS | {"shrinks": True, "steps": 59}),
        ("growth", GRAPHS | {"bound": 512}),
    ],
    ids=str,
)
def test_graphs_that_may_be_wanted(codes, kind, data):
    assert codes(kind, **data) == []


@pytest.mark.parametrize(
    ("kind", "data", "code"),
    [
        ("growth", GRAPHS | {"shrinks": True, "steps": 60}, "MEM002"),
        ("growth", GRAPHS | {"bound": 513}, "MEM002"),
    ],
    ids=str,
)
def test_graphs_that_are_kept_after_all(codes, kind, data, code):
    assert codes(kind, **data) == [code]


def test_the_first_measurement_that_is_believed_is_the_finding(make_rows):
    events = [memory_event("growth", step, shrinks=True, steps=step) for step in (90, 99, 110, 120)]
    judge = Judge()
    judge.feed(make_rows(200), events)
    (finding,) = judge.findings
    assert (finding.step, finding.evidence["count"]) == (99, 1)


def test_thresholds_can_be_tried_on_a_recorded_run(make_rows):
    event = memory_event("growth", bytes=5000.0)
    patient = TensorLeak(TensorLeak.Options(least=4000.0, clear=4500.0))
    judge = Judge([patient])
    judge.feed(make_rows(8), [event])
    assert [finding.code for finding in judge.findings] == ["MEM001"]


def test_events_of_an_earlier_version_are_left_alone(make_rows, make_event):
    judge = Judge()
    judge.feed(make_rows(8), [make_event("memory", 0, 4, fault="MEM001", path="x", bytes=1e6)])
    assert judge.findings == judge.errors == []


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("losses.append(loss)", "losses.append(loss.detach())"),
        ("total += loss  # for the log", "total += loss.detach()"),
        ("self.last = out", "self.last = out.detach()"),
        ("log(loss=loss, step=i)", ".item() or .detach() each tensor"),
    ],
)
def test_the_change_for_the_line(judged, code, change):
    single = "+=" in code
    (finding,) = judged("growth", **GRAPHS, code=code, plain=True, single=single, itself=single)
    assert change in finding.advice
    assert (finding.file, finding.line, finding.step) == ("train.py", 31, 4)
    assert finding.severity is Severity.WARNING


@pytest.mark.parametrize(
    ("data", "few", "end"),
    [
        ({"type": "list"}, "collections.deque", "history.clear()"),
        ({"type": "dict"}, "oldest keys", "history.clear()"),
        ({"type": "deque"}, "maxlen", "history.clear()"),
        ({"type": "Tensor", "single": True, "itself": True}, "history[-n:]", "start it anew"),
        ({"type": "Store"}, "the last few", "empty it"),
    ],
)
def test_what_can_be_done_with_what_grows(judged, data, few, end):
    (finding,) = judged("growth", **data, path="history")
    assert few in finding.advice and end in finding.advice
    assert "empties" not in finding.message
    (emptied,) = judged("growth", **data, path="history", shrinks=True, steps=400)
    assert "the script empties it, but not in 400 steps" in emptied.message


def test_after_the_last_row(judged):
    facts = {"killed": True, "fed": True, "age": 1, "path": "hidden[0]"}
    (finding,) = judged("graph_chain", end=True, **facts, code="h = rnn(x, h)")
    assert (finding.step, finding.severity) == (20, Severity.ERROR)
    assert "hidden = tuple(s.detach() for s in hidden)" in finding.advice


def test_a_run_that_dies_before_its_first_step():
    judge = Judge()
    parts = {"weights": 4e9, "gradients": 0, "optimizer state": 0}
    judge.feed(None, [memory_event("out_of_memory", 1, parts=parts)])
    (finding,) = judge.close()
    assert finding.code == "MEM008" and "allocating 1.9 GiB failed" in finding.message
    assert "weights 3.7 GiB" in finding.message and "smaller" in finding.advice


def test_what_a_step_needs_by_part_and_by_module():
    sizes = {"weights": 1e9, "gradients": 1e9, "optimizer state": 2e9, "activations": 16e9}
    fits = int(64 * (0.92 * 12e9 - 4e9) / (1.3 * 16e9))
    facts = {"needs": sizes, "capacity": 12e9, "batch": 64, "within": "blocks.3.attn"}
    facts["modules"] = {"blocks.*.attn": sizes, "head": dict.fromkeys(sizes, 0.0)}
    judge = Judge()
    judge.feed(None, [memory_event("out_of_memory", 1, **facts)])
    (finding,) = judge.close()
    assert "out of memory in blocks.3.attn" in finding.message
    assert "a step of 64 samples needs at least 18.6 GiB" in finding.message
    assert "activations 14.9 GiB), capacity 11.2 GiB" in finding.message
    assert "largest: blocks.*.attn 18.6 GiB" in finding.message
    assert finding.evidence["fits"] == fits == 21
    assert "about 21 of the 64 samples" in finding.advice
    assert "over 4 smaller ones" in finding.advice
    assert finding.evidence["modules"]["blocks.*.attn"] == sizes


@pytest.mark.parametrize(("of", "blamed"), [(1e6, True), (8e8, False)])
def test_an_expression_that_blows_up_its_parts_is_to_blame(of, blamed):
    facts = {"expression": "a[:, None] - b", "made_of": (("a[:, None]", (9, 1)), ("b", (9,))),
             "result": (9, 9), "result_dtype": "float32", "result_bytes": 2e9}  # fmt: skip
    judge = Judge()
    judge.feed(None, [memory_event("out_of_memory", 1, made_of_bytes=of, **facts)])
    (finding,) = judge.close()
    reported = "`a[:, None] - b` makes (9, 9) float32, 1.9 GiB, of a[:, None] (9, 1) and b (9,)"
    assert (reported in finding.message) is blamed
    assert ("torch.cdist" in finding.advice) is blamed
    assert ("halve the batch" in finding.advice) is not blamed


def test_two_events_of_one_step_and_one_line(make_rows):
    judge = Judge()
    events = [
        memory_event("growth", **GRAPHS, path=path, line=line)
        for path, line in (("a", 31), ("b", 31), ("c", 40))
    ]
    judge.feed(make_rows(8), events)
    assert [(f.line, f.evidence["count"]) for f in judge.findings] == [(31, 2), (40, 1)]


@pytest.mark.parametrize("known", [{"in_evaluation": True}, {"function": "validate"}])
def test_a_consequence_stands_behind(make_rows, known):
    judge = Judge()
    events = [
        memory_event("evaluation_graphs", code="out = model(x)"),
        memory_event("growth", 5, **GRAPHS | known),
    ]
    judge.feed(make_rows(8), events)
    assert [f.code for f in judge.findings] == ["MEM004", "MEM002"]
    assert judge.findings[1].evidence["consequence"] == "MEM004"


def test_what_grew_explains_what_ran_out(make_rows):
    judge = Judge()
    judge.feed(make_rows(8), [memory_event("growth"), memory_event("out_of_memory", 20)])
    judge.close()
    findings = judge.findings
    assert [finding.code for finding in findings] == ["MEM008", "MEM001"]
    assert explained(findings) == {id(findings[0]): findings[1]}


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        ("batch_split", {}, "split into 4 parts, with the same gradients (train.py:31)"),
        ("batch_split", {"why": "BatchNorm", "exact": False}, "approximately: BatchNorm"),
        ("batch_split", {"parts": 0, "refused": "one sample"}, ""),
        ("lost_step", {"batches": 0}, "its batch is lost"),
        ("lost_step", {"batches": 1}, ""),
    ],
)
def test_out_of_memory_that_was_survived_is_a_warning(make_rows, kind, data, words):
    judge = Judge()
    judge.feed(make_rows(8), [memory_event(kind, **data)])
    assert [f.severity for f in judge.findings] == [Severity.WARNING] * bool(words)
    for finding in judge.findings:
        assert finding.code == "MEM008" and words in finding.message
        assert finding.action in ("split_batch", "skip_update")


def test_a_run_that_dies_after_it_was_split_is_reported_both(make_rows):
    judge = Judge()
    judge.feed(make_rows(8), [memory_event("batch_split"), memory_event("out_of_memory", 20)])
    judge.close()
    assert sorted(f.evidence["what"] for f in judge.findings) == ["error", "split"]


@pytest.mark.parametrize(
    ("evaluations", "batches", "severity"),
    [(1, 1, Severity.INFO), (2, 1, Severity.WARNING), (1, 2, Severity.WARNING)],
)
def test_one_forward_pass_is_information(judged, evaluations, batches, severity):
    facts = {"nodes": 9, "evaluations": evaluations, "batches": batches, "function": "<module>"}
    (finding,) = judged("evaluation_graphs", **facts, code="model(x)")
    assert finding.severity is severity


@pytest.mark.parametrize(("step_nodes", "reported"), [(0, True), (18, True), (19, False)])
def test_an_evaluation_without_a_forward_pass_is_none_of_a_model(judged, step_nodes, reported):
    """A metric beside a model that runs under ``no_grad`` builds some nodes, too."""
    facts = {"nodes": 9, "evaluations": 3, "batches": 4, "step_nodes": step_nodes}
    assert len(judged("evaluation_graphs", **facts, code="trainer.evaluate()")) == reported


@pytest.mark.parametrize(
    ("data", "severity"),
    [
        ({}, Severity.WARNING),
        ({"least_bytes": 20_000.0}, None),
        ({"tested": True, "steps": 79}, None),
        ({"tested": True, "steps": 80}, Severity.WARNING),
        ({"looked": False}, Severity.INFO),
        ({"copied": True, "path": ""}, None),  # what a worker touches first is copied
        ({"copied": True, "path": "", "steps": 80}, Severity.INFO),
        ({"copied": True}, Severity.WARNING),
    ],
    ids=str,
)
def test_workers_that_grow(judged, data, severity):
    found = judged("worker_leak", **data)
    assert [finding.severity for finding in found] == ([] if severity is None else [severity])


@pytest.mark.parametrize(
    ("allocated", "reserved", "found"),
    [
        (2e9, 2e9 + 4e8 * np.arange(16), True),
        (2e9, 6e9, False),
        (2e9 + 4e8 * np.arange(16), 2.5e9 + 4e8 * np.arange(16), False),
        (2e9, np.where(np.arange(16) < 3, 2.5e9, 5e9), False),
    ],
)
def test_fragmentation(make_rows, allocated, reserved, found):
    rows = make_rows(16 * 16, mem_allocated=np.nan, mem_reserved=np.nan)
    rows["mem_allocated"][::16], rows["mem_reserved"][::16] = allocated, reserved
    judge = Judge()
    judge.feed(rows)
    codes = [f.code for f in judge.findings]
    assert codes == ["MEM007"] * found if found else not codes


@pytest.mark.parametrize(
    ("retries", "found"),
    [
        (np.arange(16) // 2, True),
        (np.zeros(16), False),
        (np.where(np.arange(16) < 12, 0, 1), False),
        (np.where(np.arange(16) < 12, 0, 30), False),  # once, however often
        (np.minimum(np.arange(16), 3), False),  # over
        (np.full(16, np.nan), False),  # a run of an older version
    ],
)
def test_the_allocator_runs_out_again_and_again(make_rows, retries, found):
    rows = make_rows(16 * 16, mem_allocated=np.nan, mem_reserved=np.nan, mem_retries=np.nan)
    rows["mem_allocated"][::16], rows["mem_reserved"][::16] = 7e9, 8e9
    rows["mem_retries"][::16] = retries
    judge = Judge()
    judge.feed(rows)
    assert [f.evidence["key"] for f in judge.findings] == ["retries"] * found


@pytest.mark.parametrize(
    ("facts", "words", "never"),
    [
        # The script's own line, outside of any call of the model.
        ({"asked": 3.6e13}, "look at the sizes it is given", "halve the batch"),
        ({"asked": 2e8}, "take only", "halve the batch"),
        ({"asked": 2e8, "parts": {"weights": 1e8}}, "take only", "load it in bf16"),
        ({"asked": 2e8, "batch": 32, "within": "0"}, "halve the batch", "take only"),
        ({"asked": 2e8, "code": "loss.backward()"}, "halve the batch", "take only"),
    ],
)
def test_who_needed_the_memory_is_asked_before_the_batch_is_blamed(facts, words, never):
    data = {"parts": {"weights": 1e5}, "capacity": 2e10, "code": "x = torch.zeros(n, n)"}
    judge = Judge()
    judge.feed(None, [memory_event("out_of_memory", 1, **data | facts)])
    judge.close()
    (finding,) = judge.findings
    assert words in finding.advice and never not in finding.advice


@pytest.mark.parametrize(
    ("facts", "words", "never"),
    [
        ({"code": "seen.append(x.numpy())"}, "deque(maxlen", "on purpose"),
        ({"code": "seen[step] = x.numpy()"}, "seen.clear()", "deque"),
        ({"code": "seen += text", "single": True, "itself": True}, "anew", "clear()"),
        ({"code": "seen.append(x)", "read": True}, "the loop reads seen", "write it to a file"),
    ],
)
def test_what_grows_on_the_host_is_bounded_by_what_it_is(make_rows, facts, words, never):
    data = {"path": "seen", "bytes": 1e6, "steps": 60, "other_bytes": 1e7, "file": "a.py"}
    judge = Judge()
    judge.feed(make_rows(20), [memory_event("growth", 5, line=3, **data | facts)])
    (finding,) = judge.findings
    assert finding.code == "MEM005"
    assert words in finding.advice and never not in finding.advice
