"""Findings about memory, time and crashes show their lines, and the fix where it is one line."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest

from holdfast.detectors.judge import Judge
from holdfast.source.diffs import decorated, detached, followed_by, replaced
from holdfast.types import Event, Finding
from tests.line_events import FILE, reads, stalls
from tests.memory_events import GROWTH, memory_event

STORED: dict[str, Any] = {
    "path": "history", "name": "history", "start": 31, "plain": True,
    "code": "history.append(loss)",
    "excerpt": ((30, "        loss.backward()"), (31, "        history.append(loss)")),
}  # fmt: skip
LEAK: dict[str, Any] = STORED | {"graphs": 1, "type": "list"}


def of_memory(make_rows, kind: str, data: dict) -> Finding:
    return judged(make_rows, kind, dict(memory_event(kind, **data).data))


def judged(make_rows, kind: str, data: dict, rows: int = 40) -> Finding:
    table = make_rows(rows)
    event = Event(time=float(table["time"][9]), rank=0, step=9, kind=kind,
                  data=json.loads(json.dumps(data)))  # fmt: skip
    judge = Judge()
    judge.feed(table, [event])
    judge.close()
    assert judge.errors == []
    (found,) = judge.findings
    return found


@pytest.mark.parametrize(
    ("code", "new"),
    [
        ("losses.append(loss)", "losses.append(loss.detach())"),
        ("self.out[k].append(model(x))", "self.out[k].append(model(x).detach())"),
        ("total += loss", "total += loss.detach()"),
        ("total += loss * n", "total += (loss * n).detach()"),
        ("m = 0.9 * m + 0.1 * l", "m = (0.9 * m + 0.1 * l).detach()"),
        ("self.prio[i] = err.abs() + 1e-3", "self.prio[i] = (err.abs() + 1e-3).detach()"),
        ("größe.append(verlust)", "größe.append(verlust.detach())"),
        ("xs.append(\n    f(a),\n)", "xs.append(\n    f(a).detach(),\n)"),
        ("pairs.append((loss, n))", ""),
        ("h, c = lstm(x)", ""),
        ("xs.extend(ys)", ""),
        ("xs.append(a, b)", ""),
        ("return loss", ""),
        ("for x in", ""),
        ("", ""),
    ],
)
def test_a_stored_value_loses_its_graph(code, new):
    assert detached(code) == new
    ast.parse(new)


def test_the_diff_has_the_indentation_of_the_file():
    held = GROWTH.replace(**LEAK).to_dict()
    diff = replaced(held, "history.append(loss.item())")
    assert diff.splitlines() == [
        "@@ train.py:31 @@",
        "-        history.append(loss)",
        "+        history.append(loss.item())",
    ]
    assert followed_by(held, "history.clear()").splitlines()[1:] == [
        "         history.append(loss)",
        "+        history.clear()",
    ]
    head = {"file": "train.py", "head": [12, "    def validate(self):"]}
    assert decorated(head, "@torch.no_grad()").splitlines() == [
        "@@ train.py:12 @@", "+    @torch.no_grad()", "     def validate(self):",
    ]  # fmt: skip


@pytest.mark.parametrize("data", [{}, {"code": "x"}, {"file": "a.py"}, {"head": [1]}, {"head": 3}])
def test_without_the_source_there_is_no_diff(data):
    assert replaced(data, "new") == followed_by(data, "") == decorated(data, "@x") == ""


def test_a_leak_shows_its_line_and_its_fix(make_rows):
    found = of_memory(make_rows, "growth", LEAK)
    assert found.code == "MEM002"
    assert found.evidence["headline"] == "history keeps the graphs of past steps alive"
    assert found.evidence["source"]["excerpt"][1] == [31, "        history.append(loss)"]
    assert found.evidence["diff"].endswith("+        history.append(loss.detach())")
    # A later backward pass goes through what is stored, a tuple has no detach, nor has a list.
    more = {"code": "history += losses"}
    for not_so in ({"feeds": True}, {"plain": False}, more):
        found = of_memory(make_rows, "growth", LEAK | not_so)
        assert not found.evidence.get("diff") and "->" not in found.advice


def test_a_carried_state_is_detached_behind_the_line_by_its_own_name(make_rows):
    code = "out, self.h = self.cell(x, self.h)"
    chain = STORED | {"path": "net.h", "name": "h", "fed": True, "code": code,
                      "excerpt": ((31, f"        {code}"),)}  # fmt: skip
    found = of_memory(make_rows, "graph_chain", chain)
    assert found.code == "MEM003"
    assert found.evidence["diff"].splitlines()[-1] == "+        self.h = self.h.detach()"
    assert "retain_graph" not in found.advice, "the script has none"
    for not_so in ({"differentiated": True}, {"again": False}):
        assert not of_memory(make_rows, "graph_chain", chain | not_so).evidence.get("diff")
    often = of_memory(make_rows, "graph_chain", chain | {"again": False, "retains": True})
    assert "`net.h = net.h.detach()` once in a step" in often.advice
    assert "remove retain_graph" in often.advice


def test_a_pair_of_states_is_detached_as_a_pair(make_rows):
    code = "y, (h, c) = net.rnn(x, (h, c))"
    chain = STORED | {"path": "c", "name": "c", "fed": True, "code": code,
                      "excerpt": ((31, f"    {code}"),)}  # fmt: skip
    diff = of_memory(make_rows, "graph_chain", chain).evidence["diff"]
    assert diff.splitlines()[-1] == "+    h, c = h.detach(), c.detach()"


def test_an_evaluation_gets_its_decorator(make_rows):
    line = {name: STORED[name] for name in ("code", "start", "excerpt")}
    data = line | {"nodes": 242, "step_nodes": 100, "fix": "function",
                   "head": (25, "def validate(model):")}  # fmt: skip
    found = of_memory(make_rows, "evaluation_graphs", data)
    assert found.code == "MEM004"
    for fix in ("shared", "", None):
        found_so = of_memory(make_rows, "evaluation_graphs", data | {"fix": fix})
        assert not found_so.evidence.get("diff")
    assert found.evidence["diff"].splitlines()[1:] == ["+@torch.no_grad()", " def validate(model):"]


SOURCE = [
    [50, "    for step, (x, y) in enumerate(loader):"],
    [56, "        optimizer.step()"],
    [57, "        torch.save(state, path)"],
    [58, "        print(step)"],
]


def stalled(make_rows, source, every: int = 1):
    kind, data = stalls(stalls=[[s, 0.02, False] for s in range(10, 60, every)])
    for place in data["places"]:
        place["loop"] = [50, 60]
    return judged(make_rows, kind, data | {"source": [source]})


def test_a_stall_shows_its_line_and_says_how_often_is_enough(make_rows):
    found = stalled(make_rows, SOURCE, every=5)
    assert found.code == "TPT005" and found.file == FILE
    assert found.evidence["headline"] == "saves about every 5 steps"
    assert [57, "        torch.save(state, path)"] in found.evidence["source"]["excerpt"]
    assert found.evidence["source"]["code"] == "torch.save(state, path)"
    assert found.evidence["diff"].splitlines() == [
        f"@@ {FILE}:57 @@",
        "-        torch.save(state, path)",
        "+        if step % 500 == 0:",
        "+            torch.save(state, path)",
    ]


@pytest.mark.parametrize(
    "source",
    [
        [[50, "    for x, y in loader:"], *SOURCE[1:]],  # nothing counts
        [[50, "    for _, x in enumerate(loader):"], *SOURCE[1:]],
        [SOURCE[0], [56, "        if step % 5 == 0:"], [57, "            torch.save(state, path)"]],
        [],
    ],
)
def test_a_stall_without_a_counter_or_under_a_condition_has_no_diff(make_rows, source):
    assert "diff" not in stalled(make_rows, source, every=5).evidence


def test_records_of_earlier_versions_have_no_source(make_rows):
    found = judged(make_rows, *reads())
    assert found.code == "TPT002" and "source" not in found.evidence


@pytest.mark.parametrize(
    ("message", "code", "new"),
    [
        ("grad can be implicitly created only for scalar outputs", "loss.backward()",
         "loss.mean().backward()"),
        ("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.",
         "kept = out.numpy()", "kept = out.detach().cpu().numpy()"),
        ("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()",
         "kept = out.numpy()", "kept = out.cpu().numpy()"),
        ("Can't call numpy() on Tensor that requires grad.", "a, b = x.numpy(), y.numpy()", ""),
        ("division by zero", "x = 1 / n", ""),
    ],
)  # fmt: skip
def test_a_crash_that_one_call_cures(make_rows, message, code, new):
    raised = {"type": "RuntimeError", "message": message, "file": "train.py", "line": 31,
              "code": code, "start": 31, "excerpt": [[31, f"    {code}"]], "frames": [],
              "traceback": "Traceback"}  # fmt: skip
    diff = judged(make_rows, "exception", raised).evidence.get("diff", "")
    assert diff.splitlines()[-1:] == ([f"+    {new}"] if new else [])
