"""The plain path of a step goes through the files that the page on architecture names."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType

import torch
from torch import nn
from torch.utils.data import DataLoader

import holdfast

from .conftest import MakeEngine

PACKAGE = Path(holdfast.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
DIRECT = {"guard/engine.py"}
"""Has the hooks of every step as attributes, so that they are called without passing it."""
ELSEWHERE = {"run/recorder.py"}
"""Its place is taken by a recorder in memory."""


def files_of_a_step() -> set[str]:
    """Files of holdfast that the tenth step calls a function of."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(48, 8)
    seen: set[str] = set()

    def note(frame: FrameType, event: str, arg: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            seen.add(path.relative_to(PACKAGE).as_posix())

    before = sys.getprofile()
    try:
        for step, x in enumerate(DataLoader(data, batch_size=4)):  # type: ignore[arg-type]
            if step == 10:
                break
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 8:
                sys.setprofile(note)
    finally:
        sys.setprofile(before)
    return seen


def test_every_file_that_the_page_names_is_on_the_way(make_engine: MakeEngine) -> None:
    section = PAGE.read_text().partition("## The way of a step")[2].partition("\n## ")[0]
    named = re.findall(r"^\d+\. `([\w./]+)`", section, re.MULTILINE)
    assert len(named) == 12
    engine = make_engine(fast=False)
    seen = files_of_a_step()
    assert not engine.off
    assert not set(named) - seen - DIRECT - ELSEWHERE
