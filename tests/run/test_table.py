from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.errors import RunFolderError
from holdfast.records import columns
from holdfast.run.table import (
    Declaration,
    join,
    load_segment,
    write_segment,
)

pytestmark = pytest.mark.timeout(30)

PLAIN: dict[str, Any] = {"id": 16, "table": "steps", "dtype": [["step", "<i8"], ["loss", "<f4"]]}


def written(path: Path, rows: Any = None, **extra: Any) -> Any:
    declaration = Declaration.from_dict({**PLAIN, **extra})
    return write_segment(path, declaration, "r0", number=3, start=70, rows=rows)


def rows_of(*values: tuple[int, float]) -> Any:
    return np.array(list(values), [("step", "<i8"), ("loss", "<f4")])


def test_a_segment_comes_back(tmp_path: Path) -> None:
    made = written(tmp_path / "t", rows_of((1, 0.5), (2, np.nan)), layers=["a", "b"])
    segment, rows = load_segment(tmp_path / "t")
    assert segment == made
    assert (segment.number, segment.last, segment.start, segment.end) == (3, 3, 70, 72)
    assert segment.declaration.extra == {"layers": ["a", "b"]}
    assert segment.size == (tmp_path / "t").stat().st_size
    assert rows.tobytes() == rows_of((1, 0.5), (2, np.nan)).tobytes()


@pytest.mark.parametrize("columns", [1, 100, 120, 121, 122, 500, 3000])
def test_the_header_ends_on_a_block_however_long_it_is(tmp_path: Path, columns: int) -> None:
    dtype = [["step", "<i8"], *([f"layer.{k}.weight", "<f4"] for k in range(columns))]
    written(tmp_path / "t", dtype=dtype)
    with (tmp_path / "t").open("rb") as file:
        line = file.readline()
    header = json.loads(line)
    assert header["offset"] == len(line)
    assert len(line) % 4096 == 0
    assert header["dtype"] == dtype
    assert (header["holdfast"], header["table"], header["lane"]) == (1, "steps", "r0")


def test_a_column_is_read_under_the_name_it_has_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "t", rows_of((1, 0.5)))
    monkeypatch.setitem(columns.EARLIER, "loss", "mean_loss")
    _, rows = load_segment(tmp_path / "t")
    assert rows.dtype.names == ("step", "mean_loss")
    assert rows["mean_loss"].tolist() == [0.5]


def test_only_steps_have_columns_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "t", rows_of((1, 0.5)), table="layers0")
    monkeypatch.setitem(columns.EARLIER, "loss", "mean_loss")
    assert load_segment(tmp_path / "t")[1].dtype.names == ("step", "loss")


def test_a_torn_last_row_is_not_read(tmp_path: Path) -> None:
    written(tmp_path / "t", rows_of((1, 0.5), (2, 0.25)))
    with (tmp_path / "t").open("ab") as file:
        file.write(b"torn")
    assert load_segment(tmp_path / "t")[1]["step"].tolist() == [1, 2]
    assert load_segment(tmp_path / "t")[0].rows == 2


def test_extras_cannot_pose_as_our_own_keys(tmp_path: Path) -> None:
    written(tmp_path / "t", lane="r9", offset=7, stride=4, start=1, holdfast=2)
    segment, _ = load_segment(tmp_path / "t")
    assert (segment.lane, segment.stride, segment.start) == ("r0", 1, 70)


@pytest.mark.parametrize(
    "change",
    [
        {"id": 3}, {"id": "16"}, {"table": "../evil"}, {"table": "Steps"}, {"table": None},
        {"table": "t" * 33}, {"dtype": []}, {"dtype": None}, {"dtype": [["step"]]},
        {"dtype": [["step", "<i8"], ["step", "<f4"]]}, {"dtype": [["step", ">i8"]]},
        {"dtype": [["step", "O"]]}, {"dtype": [["step", "<i8"], ["", "<f4"]]},
        {"dtype": [["step", "<i8"], [1, "<f4"]]}, {"dtype": [["loss", "<f4"]]},
        {"dtype": [["step", "<f4"]]},
    ],
)  # fmt: skip
def test_declarations_of_nonsense_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Declaration.from_dict({**PLAIN, **change})


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:100],
        lambda data: b"\x00" * 4096,
        lambda data: data.replace(b'"holdfast":1', b'"holdfast":9'),
        lambda data: data.replace(b'"offset":4096', b'"offset":8192'),
        lambda data: data.replace(b'"<f4"', b'"|O8"'),
        lambda data: data.replace(b'"start":70', b'"start":-7'),
        lambda data: data.replace(b'"stride":1', b'"stride":0'),
        lambda data: data.replace(b'"lane"', b'"Lane"'),
        lambda data: data.replace(b"\n", b" ", 1),
    ],
)
def test_a_damaged_header_is_a_run_folder_error(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "steps.r0.000003.bin"
    written(path, rows_of((1, 0.5)))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RunFolderError, match=r"steps\.r0\.000003\.bin is not a table.*move"):
        load_segment(path)


def test_blocks_with_other_columns_are_joined_on_all_of_them() -> None:
    a = np.array([(1, 0.5)], [("step", "<i8"), ("loss", "<f4")])
    b = np.array([(2, 7, 1.5)], [("step", "<i8"), ("count", "<i4"), ("lr", "<f8")])
    c = np.array([(3, 2.5)], [("step", "<i8"), ("lr", "<f4")])
    out = join([a, b, c])
    assert out.dtype.names == ("step", "loss", "count", "lr")
    assert out.dtype["lr"] == np.float64
    np.testing.assert_array_equal(out["step"], [1, 2, 3])
    np.testing.assert_array_equal(out["loss"], np.array([0.5, np.nan, np.nan], "f4"))
    np.testing.assert_array_equal(out["count"], [0, 7, 0])
    np.testing.assert_array_equal(out["lr"], [np.nan, 1.5, 2.5])
    assert len(join([])) == 0
    assert join([]).dtype.names == ("step", "time")
