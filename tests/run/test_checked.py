"""Lines of a run folder are typed records, or none; no line and no table fills the memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from odd.base import recorded, write_table

from holdfast.detectors import Window
from holdfast.detectors.divergence import Divergence
from holdfast.detectors.scaler_collapse import ScalerCollapse
from holdfast.errors import RunFolderError
from holdfast.records import fault
from holdfast.records.run import End
from holdfast.run import jsonl, thinning
from holdfast.run.checked import batch_of, event_of, finding_of, meta_of
from holdfast.run.table import read_header, read_rows

EVENT = {"time": 1.0, "rank": 0, "step": 3, "kind": "end", "data": {"steps": 4, "skipped": 1}}
ODD = (None, {}, [], "", "x", True, [None], {"a": 1})


@pytest.mark.parametrize(
    ("name", "parse"), [("events", event_of), ("findings", finding_of), ("batches", batch_of)]
)
def test_nothing_is_taken_from_what_is_recorded(name: str, parse: Callable[[Any], Any]):
    for line in recorded()[name]:
        read = parse(line)
        assert (read if isinstance(read, dict) else read.to_dict()) == line
    assert meta_of(recorded()["meta"]) == recorded()["meta"]


@pytest.mark.parametrize("odd", ODD, ids=repr)
@pytest.mark.parametrize("key", ["time", "rank", "step"])
def test_a_line_without_a_sound_place_is_no_event(key, odd):
    with pytest.raises(ValueError, match=f"its {key} makes no sense"):
        event_of({**EVENT, key: odd})


@pytest.mark.parametrize("line", [{"time": -1}, {"time": 1e308}, {"rank": -1}, {"step": 10**20},
                                  {"kind": {}}, {"data": [1]}])  # fmt: skip
def test_nor_is_one_with_values_out_of_range(line):
    with pytest.raises(ValueError, match="makes no sense"):
        event_of(EVENT | line)


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_what_a_reader_computes_with_reads_as_not_recorded_where_it_is_odd(odd):
    data = {"opt": odd, "skipped": 1, "note": odd}
    assert event_of({**EVENT, "kind": "mine", "data": data}).data == {"skipped": 1, "note": odd}
    of_ours = event_of({**EVENT, "data": {"steps": odd, "skipped": 1}})
    assert End.of(of_ours) is None and "steps" in fault(of_ours)
    line = {**recorded()["findings"][0], "evidence": {"count": odd, "note": 3}}
    assert finding_of(line).evidence == {"note": 3}
    assert meta_of({"restarts": "no", "format": 1}) == {"format": 1}


def test_a_line_beyond_the_bound_is_refused_with_the_file(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(jsonl, "LONGEST", 1 << 10)
    path = tmp_path / "events.r0.jsonl"
    short = json.dumps(EVENT).encode() + b"\n"
    path.write_bytes(short * 40)
    assert len(jsonl.read_lines(path).objects) == 40
    with path.open("ab") as file:
        file.truncate(1 << 32)
    with pytest.raises(RunFolderError, match=r"events\.r0\.jsonl has a line of more than .* move"):
        jsonl.read_lines(path)
    with pytest.raises(ValueError, match="larger than"):
        jsonl.read_object(path)


def test_a_number_that_no_float_can_hold_is_refused():
    with pytest.raises(ValueError, match="a number of 400 digits"):
        jsonl.decode(b'{"steps":%d}' % 10**399)


def test_zeros_at_the_end_of_a_table_are_no_rows(tmp_path: Path):
    path = tmp_path / "steps.r0.000000.bin"
    write_table(path, 16, "layers0", ["0.weight"], 50)
    data = path.read_bytes()
    path.write_bytes(data[:4096] + data[4096:].replace(bytes(4), b"\0\0\0\x01"))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + (1 << 28))
    with path.open("rb") as file:
        assert read_header(file, path).rows == 50


def test_a_table_too_large_for_the_memory_is_thinned_around_its_incidents(tmp_path, monkeypatch):
    path = tmp_path / "steps.r0.000000.bin"
    write_table(path, 16, "steps", ["loss", "loss_bad", "grad_norm", "grad_max", "skipped",
                                    "loss_baseline", "loss_limit", "norm_baseline", "norm_limit",
                                    "rss", "backwards", "batch", "forward", "backward",
                                    "optimizer", "data_wait", "other"], 40_000)  # fmt: skip
    with path.open("rb") as file:
        segment = read_header(file, path)
        whole = thinning.read_within(file, segment, 0, segment.rows)
        assert np.array_equal(whole["step"], read_rows(file, segment)["step"])
        monkeypatch.setattr(thinning, "_LARGE", whole.nbytes // 2)
        monkeypatch.setattr(thinning, "_ENOUGH", whole.nbytes // 4)
        few = thinning.read_within(file, segment, 0, segment.rows)
    assert len(few) < 0.3 * len(whole)
    assert set(few["step"]) > {*range(20_000 - thinning.REACH, 20_000 + thinning.REACH)}


@pytest.mark.parametrize(
    ("detector", "columns"),
    [
        (ScalerCollapse(), {"scale": 0.0}),
        (Divergence(), {"loss_baseline": 2.0, "norm_baseline": 0.0}),
        (Divergence(), {"loss_baseline": np.nan, "norm_baseline": 1.0}),
    ],
)
def test_rows_that_cannot_be_a_fault_are_not_looked_at_one_by_one(detector, columns):
    rows = np.zeros(4096, [("step", "<i8"), *((name, "<f4") for name in columns)])
    rows["step"] = np.arange(4096)
    for name, value in columns.items():
        rows[name] = value
    assert not detector.suspects(Window(rows=rows, fresh=len(rows))).any()
