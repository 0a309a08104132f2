"""Advice on evaluations with graphs: the line that is named, and that the fix harms no training."""

from __future__ import annotations

import linecache
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.detectors.evaluation_with_graph import EvaluationWithGraph
from holdfast.diagnosis.memory import unused_graphs
from holdfast.records.memory import EvaluationGraphs
from holdfast.source.statements import function_at

HEAD = """
import torch
from torch import nn
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
    def forward(self, x):
        return self.layer(x)
    def pi(self, x):
        return torch.softmax(self.layer(x), -1)
    def act(self, x):
        return self.pi(x).argmax(-1)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
batches = [torch.randn(8, 4) for _ in range(3)]
"""
# Script; lines at work, innermost first; the text of the line to name and the kind of the fix.
CASES: dict[str, tuple[str, list[str], str, str]] = {
    "a rollout by a method that training calls": (
        """
        def update(x):
            loss = net.pi(x)[:, 0].mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        def main():
            for x in batches:
                for _ in range(3):
                    chosen = net.pi(x)  # rollout
                update(x)
        main()
        """,
        ["return torch.softmax", "# rollout", "main()"], "# rollout", "statement",
    ),
    "forward called by its name": (
        """
        def main():
            for x in batches:
                for _ in range(3):
                    chosen = net.forward(x)  # rollout
                loss = net(x).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        main()
        """,
        ["return self.layer(x)", "# rollout", "main()"], "# rollout", "statement",
    ),
    "a method of the evaluation alone": (
        """
        def main():
            for x in batches:
                done = net.act(x)
                loss = net.pi(x)[:, 0].mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        main()
        """,
        ["return torch.softmax", "return self.pi(x)", "done = ", "main()"],
        "return self.pi(x)", "function",
    ),
    "validation in the function that trains": (
        """
        def fit():
            for epoch in range(2):
                for x in batches:
                    out = net(x)
                    loss = out.pow(2).mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                for x in batches:
                    out = net(x)  # judges
        fit()
        """,
        ["out = net(x)  # judges", "fit()"], "# judges", "statement",
    ),
    "one line for both": (
        """
        def fit():
            for phase in ("train", "test", "train"):
                for x in batches:
                    loss = net(x).pow(2).mean()  # both
                    if phase == "train":
                        optimizer.zero_grad()
                        loss.backward()
                        optimizer.step()
        fit()
        """,
        ["# both", "fit()"], "# both", "shared",
    ),
    "a step that training and validation call": (
        """
        def step(x):
            return net(x).pow(2).mean()
        def validate():
            return sum(step(x) for x in batches)  # validates
        for x in batches:
            loss = step(x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            validate()
        """,
        ["return net(x)", "# validates", "validate()"], "# validates", "function",
    ),
    "at the top of the file": (
        """
        for x in batches:
            loss = net(x).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for x in batches:
            seen = net(x)  # judges
        """,
        ["# judges"], "# judges", "statement",
    ),
    "a comprehension in the function that trains": (
        """
        def fit():
            for x in batches:
                loss = net(x).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            seen = [net(x) for x in batches]  # judges
        fit()
        """,
        ["<listcomp> # judges", "# judges", "fit()"], "# judges", "statement",
    ),
    "a lambda that is called elsewhere": (
        """
        def fit():
            predict = lambda x: net(x)  # defines
            for x in batches:
                loss = net(x).pow(2).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                seen = predict(x)  # judges
        fit()
        """,
        ["<lambda> # defines", "# judges", "fit()"], "# judges", "statement",
    ),
    "a generator that runs later": (
        """
        for x in batches:
            loss = net(x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seen = (net(x) for x in batches)  # judges
        total = sum(out.sum() for out in seen)
        """,
        ["<genexpr> # judges"], "# judges", "",
    ),
    "torch by another name": (
        """
        for x in batches:
            loss = net(x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seen = net(batches[0])  # judges
        """,
        ["# judges"], "# judges", "statement",
    ),
    "a loss that is handed to a function": (
        """
        def learn(loss):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        for x in batches:
            out = net(x)  # perhaps
            learn(out.mean())
        """,
        ["# perhaps"], "# perhaps", "",
    ),
    "a backward pass that no file of the script has": (
        "seen = [net(x) for x in batches]  # judges", ["# judges"], "# judges", "",
    ),
}  # fmt: skip


def weights(script: str) -> list[torch.Tensor]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(script, "trained.py", "exec"), names)
    return [parameter.detach().clone() for parameter in names["net"].parameters()]


def changed(script: str, diff: str) -> str:
    """The script with a diff in our form put in: its old lines, one after the other, by the new."""
    first, *rest = diff.splitlines()
    line = int(re.findall(r":(\d+) @@", first)[0])
    old = [each[1:] for each in rest if each[0] in "- "]
    new = [each[1:] for each in rest if each[0] in "+ "]
    lines = script.splitlines()
    assert lines[line - 1 : line - 1 + len(old)] == old
    lines[line - 1 : line - 1 + len(old)] = new
    return "\n".join(lines)


@pytest.mark.parametrize("case", CASES)
def test_the_fix_of_an_evaluation_harms_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
):
    body, at_work, named, fix = CASES[case]
    script = HEAD + textwrap.dedent(body)
    if case == "torch by another name":
        script = script.replace("torch.", "th.").replace("import torch\n", "import torch as th\n")
    path = tmp_path / "train.py"
    path.write_text(script)
    linecache.checkcache(str(path))
    monkeypatch.setattr(unused_graphs, "user_modules", list)
    lines = script.splitlines()
    calls: list[tuple[str, int, str]] = []
    for text in at_work:
        frame, text = text.split(" ", 1) if text.startswith("<") else ("", text)
        n = max(i for i, line in enumerate(lines, 1) if text in line)
        calls.append((str(path), n, frame or function_at(str(path), n) or "<module>"))
    found = unused_graphs.line_of(calls)
    assert named in lines[found.line - 1], found
    assert found.fix == fix
    record = EvaluationGraphs(nodes=9, evaluations=1, batches=0, **vars(found))
    diff = EvaluationWithGraph().diff(record)
    assert bool(diff) == (fix in ("function", "statement"))
    if diff:
        before, after = weights(script), weights(changed(script, diff))
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        assert not torch.equal(before[0], weights(HEAD)[0])


def test_a_loop_with_training_in_it_is_not_put_under_no_grad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(unused_graphs, "user_modules", list)
    path = tmp_path / "loops.py"
    path.write_text("for x in data:\n    chosen = net(x)\n    loss = net(x)\n    loss.backward()\n"
                    "for x in data:\n    seen = net(x)\n")  # fmt: skip
    assert not unused_graphs.line_of([(str(path), 2, "<module>")]).loop
    assert unused_graphs.line_of([(str(path), 6, "<module>")]).loop
