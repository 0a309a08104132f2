"""Findings about memory: one for each line, with the change for that line."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.judge import Judge
from holdfast.types import Severity

HELD = {
    "path": "losses", "name": "losses", "how": "local", "seen": "trace", "file": "train.py",
    "line": 31, "bytes": 4096.0, "rate": 1.0, "size": 8, "steps": 8, "age": 8, "heap_slope": 5e3,
}  # fmt: skip


@pytest.fixture
def judged(make_rows, make_event):
    """``judged(MEM002, code="...")``: what is found of one event in the middle of a run."""

    def judge_one(fault, *, end=False, **data):
        judge = Judge()
        event = make_event("memory", 0, 4 if not end else 20, **HELD | {"fault": fault} | data)
        judge.feed(make_rows(8), [event])
        judge.close()
        assert judge.errors == []
        return judge.findings

    return judge_one


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("losses.append(loss)", "losses.append(loss.detach())"),
        ("total += loss  # for the log", "total += loss.item()"),
        ("self.last = out", "self.last = out.detach()"),
        ("log(loss=loss, step=i)", ".detach() on what goes into it"),
    ],
)
def test_the_change_for_the_line(judged, code, change):
    (finding,) = judged("MEM002", code=code)
    assert change in finding.advice
    assert (finding.file, finding.line, finding.step) == ("train.py", 31, 4)
    assert finding.severity is Severity.WARNING


def test_after_the_last_row(judged):
    (finding,) = judged("MEM003", end=True, killed=True, path="hidden[0]", code="h = rnn(x, h)")
    assert (finding.step, finding.severity) == (20, Severity.ERROR)
    assert "hidden = tuple(s.detach() for s in hidden)" in finding.advice


def test_a_run_that_dies_before_its_first_step(make_event):
    judge = Judge()
    parts = {"weights": 4e9, "gradients": 0, "optimizer state": 0}
    judge.feed(None, [make_event("memory", 0, 1, fault="MEM008", asked=2e9, parts=parts)])
    (finding,) = judge.close()
    assert finding.code == "MEM008" and "1.9 GiB could not be had" in finding.message
    assert "weights 3.7 GiB" in finding.message and "smaller" in finding.advice


def test_what_a_step_needs_by_part_and_by_module(make_event):
    sizes = {"weights": 1e9, "gradients": 1e9, "optimizer state": 2e9, "activations": 16e9}
    facts = {"needs": sizes, "capacity": 12e9, "batch": 64, "fits": 28, "within": "blocks.3.attn"}
    facts["modules"] = {"blocks.*.attn": sizes, "head": dict.fromkeys(sizes, 0.0)}
    judge = Judge()
    judge.feed(None, [make_event("memory", 0, 1, fault="MEM008", asked=2e9, **facts)])
    (finding,) = judge.close()
    assert "out of memory in blocks.3.attn" in finding.message
    assert "a step of 64 samples needs at least 18.6 GiB" in finding.message
    assert "activations 14.9 GiB), there are 11.2 GiB" in finding.message
    assert "most of it for blocks.*.attn 18.6 GiB" in finding.message
    assert (
        "about 28 of the 64 samples" in finding.advice and "over 3 smaller ones" in finding.advice
    )
    assert finding.evidence["modules"]["blocks.*.attn"] == sizes


def test_two_events_of_one_step_and_one_line(make_rows, make_event):
    judge = Judge()
    events = [
        make_event("memory", 0, 4, **HELD | {"fault": "MEM002", "path": path, "line": line})
        for path, line in (("a", 31), ("b", 31), ("c", 40))
    ]
    judge.feed(make_rows(8), events)
    assert [(f.line, f.evidence["count"]) for f in judge.findings] == [(31, 2), (40, 1)]


def test_a_consequence_stands_behind(make_rows, make_event):
    judge = Judge()
    told = HELD | {"nodes": 40, "evaluations": 2, "batches": 5, "function": "validate"}
    events = [
        make_event("memory", 0, 4, **told | {"fault": "MEM002", "consequence": "MEM004"}),
        make_event("memory", 0, 5, **told | {"fault": "MEM004"}),
    ]
    judge.feed(make_rows(8), events)
    assert [f.code for f in judge.findings] == ["MEM004", "MEM002"]


def test_one_forward_pass_is_information(judged):
    (finding,) = judged("MEM004", mild=True, nodes=9, code="model(x)", function="<module>")
    assert finding.severity is Severity.INFO


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
