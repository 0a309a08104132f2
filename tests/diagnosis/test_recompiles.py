"""The line behind a guard that fails."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from holdfast.diagnosis.throughput.recompiles import _changes

SOURCE = """
class Net:
    def __init__(self):
        self.epoch = 0
        self.seen = 0

    def forward(self, x):
        self.seen += 1
        return x * self.epoch + meter.update(x)

def train(net, meter):
    for epoch in range(9):
        net.epoch = epoch
"""


@pytest.mark.parametrize(
    ("guard", "line"),
    [
        ("self.epoch == 3", 12),
        ("self._modules['net'].epoch == 3", 12),
        ("self.seen == 7", 7),
        ("G['meter']._count == 7", 8),
        ("G['other']._count == 7", 0),
        ("tensor 'x' size mismatch at index 1. expected 21, actual 16", 0),
    ],
)
def test_what_changes_it(tmp_path: Path, guard: str, line: int) -> None:
    file = tmp_path / "train.py"
    file.write_text(textwrap.dedent(SOURCE).strip())
    found = _changes(guard, {str(file): 1})
    assert found == ((str(file), line) if line else None)
