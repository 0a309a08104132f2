from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast import HoldfastError
from holdfast_models.xec.evaluation.regression_metrics import regression_metrics
from holdfast_models.xec.figures.tables import read_tables, write_tables

MakeRows = Callable[..., dict[str, Any]]


def test_tables_are_read_as_they_were_written(tmp_path: Path, make_rows: MakeRows) -> None:
    rows = make_rows(50)
    files = write_tables(tmp_path, rows, suffix="_ep3")
    names = ["angle", "energy", "timing", "uvwFI"]
    assert [path.name for path in files] == [f"predictions_{name}_ep3.csv" for name in names]
    tables = read_tables(tmp_path, suffix="_ep3")
    for column, values in tables["uvwFI"].items():
        np.testing.assert_allclose(values, rows[column], rtol=1e-8)
    # The energy is also drawn along the place.
    assert {"true_u", "true_v", "true_w", "pred_energy_log_var"} <= set(tables["energy"])
    found, expected = regression_metrics(tables["timing"]), regression_metrics(rows)
    assert found["timing_res_68pct"] == pytest.approx(expected["timing_res_68pct"], rel=1e-5)
    assert files[0].read_text().splitlines()[1].startswith("7,0,")


@pytest.mark.parametrize("count", [0, 1])
def test_tables_of_no_and_of_one_event(tmp_path: Path, make_rows: MakeRows, count: int) -> None:
    write_tables(tmp_path, make_rows(count))
    assert {
        len(column) for table in read_tables(tmp_path).values() for column in table.values()
    } == {count}


def test_columns_that_were_appended_twice_are_refused(tmp_path: Path, make_rows: MakeRows) -> None:
    rows = make_rows(10)
    for name in "uvw":
        rows[f"true_{name}"] = np.repeat(rows[f"true_{name}"], 2)
    with pytest.raises(HoldfastError, match="differ in length"):
        write_tables(tmp_path, rows)
    assert not list(tmp_path.glob("*.csv"))


def test_a_folder_without_tables_and_a_broken_table_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"no predictions_TASK\.csv in"):
        read_tables(tmp_path)
    (tmp_path / "predictions_energy.csv").write_text("pred_energy,true_energy\n1,two\n")
    with pytest.raises(HoldfastError, match="is no table of numbers"):
        read_tables(tmp_path)
