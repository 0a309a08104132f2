"""Lines that give a name its value."""

from __future__ import annotations

from pathlib import Path

from holdfast.source.assignments import (
    attribute_line,
    attribute_of_class,
    first_assigned,
    first_line_of,
)

MODEL = """
class Net(Base):
    def __init__(self):
        self.head, other = Linear(2, 1), 0
        self.scale: float = 1.0
        other.scale = 2.0

    def reset(self):
        self.head = None

def train():
    total = 0
    total = 1
"""


def test_the_line_that_gives_a_name_its_value(tmp_path: Path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    file = str(path)
    assert first_line_of(file, 11, "total") == 12 and first_line_of(file, 11, "none") == 11
    assert first_assigned(file, "total") == 12 and first_assigned(file, "") == 0
    assert attribute_line(file, "head") == 9 and attribute_line(file, "none") == 0
    assert attribute_of_class(file, "Net", "scale") == 5, "of self, not of another"
    assert attribute_of_class(file, "Net", "head") == 9, "a tuple is not looked into"
    assert attribute_of_class(file, "Other", "head") == 0
