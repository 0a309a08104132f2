from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import RunFolderError
from holdfast.run import jsonl

pytestmark = pytest.mark.timeout(30)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def spelled(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if isinstance(value, dict):
        return {key: spelled(item) for key, item in value.items()}
    return [spelled(item) for item in value] if isinstance(value, list) else value


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.text(), values, max_size=4))
def test_any_value_comes_back_with_nonfinite_numbers_as_strings(value: dict[str, Any]) -> None:
    line = jsonl.encode(value)
    assert b"\n" not in line
    assert line.isascii()
    assert json.loads(line, parse_constant=pytest.fail) == spelled(value)
    assert jsonl.decode(line) == spelled(value)


def test_strings_read_back_with_float() -> None:
    back = jsonl.decode(jsonl.encode({"a": [math.nan, math.inf, -math.inf]}))["a"]
    assert back == ["NaN", "Infinity", "-Infinity"]
    assert math.isnan(float(back[0]))
    assert [float(x) for x in back[1:]] == [math.inf, -math.inf]


def test_numpy_numbers_and_odd_keys_have_a_form() -> None:
    value = {
        "a": np.float32("nan"),
        "b": np.arange(3),
        np.int64(4): (np.bool_(True),),
        "d": {math.inf: np.float64("-inf")},
    }
    expected = {"a": "NaN", "b": [0, 1, 2], "4": [True], "d": {"Infinity": "-Infinity"}}
    assert json.loads(jsonl.encode(value)) == expected


def test_what_json_cannot_hold_is_an_error() -> None:
    with pytest.raises(TypeError):
        jsonl.encode({"a": object()})


def test_file_names_that_are_no_unicode_survive() -> None:
    name = os.fsdecode(b"train\xff.py")
    assert jsonl.decode(jsonl.encode({"file": name}))["file"] == name


@pytest.mark.parametrize(
    "line",
    [b"[1]", b'"x"', b'{"a":NaN}', b'{"a":-Infinity}', b"{", b"", b"\xff\xfe", b'{"a":' * 100_000],
)
def test_only_strict_objects_decode(line: bytes) -> None:
    with pytest.raises(ValueError):
        jsonl.decode(line)


def test_a_line_ends_in_its_only_newline() -> None:
    assert jsonl.line({"a": "x\ny", "b": math.nan}) == b'{"a":"x\\ny","b":"NaN"}\n'


@pytest.mark.parametrize(
    ("data", "objects", "corrupt", "end"),
    [
        (b'{"a":1}\n{"a":2}\n', [{"a": 1}, {"a": 2}], 0, 16),
        (b'{"a":1}\n{"a":', [{"a": 1}], 0, 8),
        (b'{"a":1}\n{"a":2}', [{"a": 1}], 0, 8),  # no newline yet: not written yet
        (b'{"a":1}\n\x00\xffgarbage\n', [{"a": 1}], 0, 18),
        (b'{"a":1}\ngarbage\n\n{"a":2}\n', [{"a": 1}, {"a": 2}], 2, 25),
        (b"", [], 0, 0),
        (b"no newline at all", [], 0, 0),
    ],
)
def test_reading_tolerates_what_a_crash_leaves(
    tmp_path: Path, data: bytes, objects: list[Any], corrupt: int, end: int
) -> None:
    (tmp_path / "x").write_bytes(data)
    assert jsonl.read_lines(tmp_path / "x") == jsonl.JsonLines(objects, corrupt, end)


def test_reading_goes_on_where_it_ended_and_stops_where_told(tmp_path: Path) -> None:
    path = tmp_path / "x"
    assert jsonl.read_lines(path) == jsonl.JsonLines()
    path.write_bytes(b'{"a":1}\n{"a":2}\n{"a"')
    assert jsonl.read_lines(path, stop=10) == jsonl.JsonLines([{"a": 1}], 0, 8)
    end = jsonl.read_lines(path, start=8).end
    path.write_bytes(b'{"a":1}\n{"a":2}\n{"a":3}\n')
    assert jsonl.read_lines(path, start=end).objects == [{"a": 3}]


def test_unreadable_is_a_run_folder_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"cannot read d: .*directory.*permissions"):
        (tmp_path / "d").mkdir()
        jsonl.read_lines(tmp_path / "d")
