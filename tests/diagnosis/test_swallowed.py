"""Exceptions that a loop catches on every batch are found; those of healthy loops are not."""

from __future__ import annotations

import linecache
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.diagnosis.crash.swallowed import SwallowedErrors
from holdfast.records.crash import SwallowedException
from holdfast.run import encode
from holdfast.run.jsonl import decode

HEAD = """
import torch
from torch import nn
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def batches(count):
    for _ in range(count):
        yield torch.randn(2, WIDTH)
        fetched()
"""
FAILING = {
    "in the loop": """
        for x in batches(20):
            try:
                loss = model(x).mean()
                loss.backward()
                optimizer.step()
            except Exception:
                continue
        """,
    "in a function": """
        def train_step(x):
            loss = model(x).mean()
            loss.backward()
            optimizer.step()
        for x in batches(20):
            try:
                train_step(x)
            except RuntimeError as error:
                print("skipped")
        """,
    "inside of the function": """
        def train_step(x):
            try:
                loss = model(x).mean()
                loss.backward()
                optimizer.step()
            except RuntimeError:
                return None
        for x in batches(20):
            train_step(x)
        """,
}
HEALTHY = {
    "validation": """
        for x in batches(20):
            try:
                cache = {}["key"]
            except KeyError:
                cache = None
            loss = model(x).mean()
        """,
    "without gradients": """
        with torch.no_grad():
            for x in batches(20):
                try:
                    raise ValueError("a sample without a label")
                    loss.backward()
                except ValueError:
                    pass
        """,
    "in evaluation mode": """
        model.eval()
        for x in batches(20):
            try:
                raise ValueError("a sample without a label")
                loss.backward()
            except ValueError:
                pass
        """,
    "accumulation": """
        for i, x in enumerate(batches(20)):
            try:
                {}["cached"]
            except KeyError:
                pass
            loss = model(x).mean()
            loss.backward()
        """,
}


def found(folder: Path, script: str, width: int) -> list[dict[str, Any]]:
    """Run a loop whose batches are counted as the engine counts them."""
    reported: list[dict[str, Any]] = []
    path = folder / "loop.py"
    path.write_text(HEAD + textwrap.dedent(script))
    linecache.checkcache(str(path))
    names: dict[str, Any] = {"__name__": "__main__", "WIDTH": width}
    profile = SwallowedErrors(
        lambda: [m for m in names.values() if isinstance(m, nn.Module)],
        lambda found: reported.append({"kind": found.kind, **found.to_dict()}),
    )

    def fetched() -> None:
        profile.batches += 1
        if profile.batches >= profile.due:
            profile.look(sys._getframe())

    names["fetched"] = fetched
    before = sys.gettrace()
    sys.settrace(None)
    try:
        exec(compile(path.read_text(), str(path), "exec"), names)
        assert sys.gettrace() is None
    finally:
        sys.settrace(before)
    return reported


@pytest.mark.parametrize("case", FAILING)
def test_what_is_caught_on_every_batch_is_found_with_its_line(tmp_path: Path, case: str):
    (reported,) = found(tmp_path, FAILING[case], width=3)
    assert reported.pop("kind") == SwallowedException.kind
    found_again = SwallowedException.from_dict(decode(encode(reported)))
    assert found_again.to_dict() == decode(encode(reported)) and found_again.type == "RuntimeError"
    assert "loss = model(x).mean()" in str(found_again.code) and found_again.excerpt
    assert found_again.batches < 12


@pytest.mark.parametrize("case", HEALTHY)
def test_healthy_loops_are_not_told(tmp_path: Path, case: str):
    assert found(tmp_path, HEALTHY[case], width=4) == []


def test_a_loop_that_steps_is_never_followed(tmp_path: Path):
    models_asked: list[int] = []
    profile = SwallowedErrors(lambda: models_asked.append(1) or [], lambda found: None)
    for _ in range(100):
        profile.batches += 1
        assert profile.batches < profile.due
        profile.batches = 0
    assert not models_asked and torch.is_grad_enabled()
