"""Memory by part with what grows, the layers over a run, and the numbers of a finding."""

from __future__ import annotations

import re

import numpy as np
import pytest

from holdfast.records.memory import PartSizes
from holdfast.report import report_html, report_md
from holdfast.report.layer_map import COLUMNS, SHOWN, layer_maps
from holdfast.report.measured import measured_of
from holdfast.report.memory_curves import memory_curves_of
from holdfast.run import LaneData, Run

MIB = float(1 << 20)


def lane_of(rows, **given) -> LaneData:
    base = {"tables": {}, "events": [], "findings": [], "batches": []}
    return LaneData(lane="r0", rank=0, steps=rows, **(base | given))


def leaking(make_rows, count: int = 100):
    """Rows sampled every 16 steps that grow by 1 MiB a step from step 20 on."""
    rows = make_rows(count, rss=np.nan)
    for step in range(0, count, 16):
        rows["rss"][step] = 400 * MIB + max(0, step - 20) * MIB
    return rows


@pytest.fixture
def leak(incident_finding):
    """A finding about a list that grows since step 20."""
    return incident_finding(
        28, cause=None, code="MEM001", name="tensor_leak", action="",
        message="step 28: history grows", file="src/train.py", line=57,
        evidence={
            "variable": "history", "grown_for": 8.0, "bytes_per_step": MIB, "rate": 1.0,
            "headline": "history grows with every step",
            "source": {"code": "history.append(out)", "start": 57,
                       "excerpt": [[56, "    out = model(x)"], [57, "    history.append(out)"]]},
        },
    )  # fmt: skip


def test_what_grows_is_named_and_measured(make_rows, make_event, leak):
    parts = PartSizes(weights=30 << 20, gradients=30 << 20, optimizer_state=60 << 20, device="cpu")
    event = make_event(parts.kind, 0, 8, **parts.to_dict())
    lane = lane_of(leaking(make_rows), events=[event])
    (memory,) = memory_curves_of(lane, [leak])
    names = [name for name, _ in memory.parts]
    assert names[:3] == ["weights", "gradients", "optimizer state"] and names[-1] == "growth"
    assert np.allclose(np.sum([part for _, part in memory.parts], axis=0), memory.total)
    assert memory.growth is not None and memory.growth.since == 20
    assert memory.growth.per_step == pytest.approx(MIB, rel=0.1)
    assert memory.growth.names == ("history (train.py:57)",)


def test_the_curve_reaches_the_end_and_says_when_it_was_measured_last(make_rows):
    (memory,) = memory_curves_of(lane_of(leaking(make_rows, 110)))
    assert memory.steps[-1] == 109 and memory.last_measured == 96
    assert memory.growth is None, "without a finding nothing is called growth"


def test_parts_that_are_larger_than_the_whole_are_not_drawn(make_rows, make_event):
    parts = PartSizes(weights=1 << 40, gradients=0, optimizer_state=0, device="cpu")
    event = make_event(parts.kind, 0, 8, **parts.to_dict())
    (memory,) = memory_curves_of(lane_of(make_rows(20), events=[event]))
    assert [name for name, _ in memory.parts] == ["process"]


def test_a_leak_on_the_page(tmp_path, make_rows, add_lane, leak):
    run = Run.create(tmp_path / "run", {"script": "train.py"})
    add_lane(run, leaking(make_rows), findings=[leak])
    run.update_meta(status="finished", exit_code=0)
    text = report_html(run)
    reported = re.sub(r"<[^>]+>", " ", text).replace("\N{NO-BREAK SPACE}", " ")
    assert "history grows with every step" in reported and "▶ 57" in text
    assert "whole process, per step" in reported and "what grows: history (train.py:57)" in reported
    assert "added since step 20: history (train.py:57)" in reported
    assert 'href="#memory-r0"' in text and 'id="memory-r0"' in text
    assert "numbers: variable history" in report_md(run)


def test_numbers_have_units_and_what_is_zero_or_missing_is_left_out(incident_finding):
    finding = incident_finding(
        cause=None,
        evidence={"step_ms": 26.4, "stall_ms": 48.9, "share": 0.38, "lost": 1.5, "every": 3.0,
                  "rate": 0.0, "size": float("nan"), "reads": True, "age": "9"},
    )  # fmt: skip
    reported = [f"{label} {value}".replace("\N{NO-BREAK SPACE}", " ")
            for label, value in measured_of(finding)]  # fmt: skip
    assert reported == ["share of the time 38 %", "lost when found 1.5 s", "each stall 48.9 ms",
                    "every 3 steps", "a step 26.4 ms"]  # fmt: skip


def test_the_map_of_the_layers_spans_the_run_and_marks_what_was_bad(make_rows, make_layers):
    rows = make_rows(600, grad_bad={412: 8})
    names = [f"block.{i}.weight" for i in range(200)]
    table = make_layers([*range(0, 400, 50), 412, 450], names, {412: [7]})
    table["block.150.weight"] *= np.linspace(1, 1000, len(table))
    table["block.3.weight"] = np.nan  # frozen
    (found,) = layer_maps(lane_of(rows, tables={"layers0": table}))
    assert len(found.names) == SHOWN and found.norms.shape == (SHOWN, COLUMNS)
    assert {"block.7.weight", "block.150.weight"} <= set(found.names)
    assert "block.3.weight" not in found.names
    assert np.isfinite(found.norms[:, -1]).all(), "the last measurement holds until the end"
    # One step of the 12.5 in its stretch.
    assert (
        found.bad.sum() == pytest.approx(1 / 12.5)
        and found.bad[found.names.index("block.7.weight")].any()
    )
    assert found.changes[0][0] == "block.150.weight"


def test_layers_measured_once_are_reported_in_numbers_only(
    make_rows, make_layers, tmp_path, add_lane
):
    run = Run.create(tmp_path / "run", {})
    tables = {"layers0": make_layers([0], ["a.weight", "b.weight"], {})}
    add_lane(run, make_rows(9), tables=tables)
    text = report_html(run)
    assert "measured on one step only" in text and 'class="map"' not in text
    assert "The layers in numbers" in text
