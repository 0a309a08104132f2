"""The training process' end of a lane."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from holdfast.run import Ring
from holdfast.run.recorder import RowTable

pytestmark = pytest.mark.timeout(30)

ROWS = [(step, 0.5 * step, {"loss": 1.0 / (step + 1), "lr": math.nan}) for step in range(5)]


@pytest.mark.parametrize("beyond", [{}, {"loss": 1e39, "lr": -1e39}])
def test_rows_by_one_store_are_those_of_one_store_each(
    tmp_path: Path, beyond: dict[str, float]
) -> None:
    rows = [*ROWS, (5, 2.5, {"loss": 0.0, "lr": 0.0} | beyond)]
    found: list[object] = []
    for name in ("together", "singly"):
        ring = Ring.create(tmp_path / name, 4096)
        table = RowTable(ring, 16, ["loss", "lr"])
        if name == "together":
            table.put_all(rows)
        else:
            for row in rows:
                table.put(*row)
        found.append(Ring.attach(tmp_path / name).drain())
    assert found[0] == found[1] and len(found[0]) == len(rows)  # type: ignore[arg-type]
