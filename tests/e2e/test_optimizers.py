"""Every shape of update loop: what can be skipped is, what cannot is detected and said so.

All cases live in one script that forks once per case, so that torch is imported once; each
child is a training of its own with its own lane.
"""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.run import LaneData

from .conftest import Bench, Outcome, Record

# A minute for all of them; the same without processes of their own is in tests/guard.
pytestmark = pytest.mark.slow

CASES = (Path(__file__).parent / "optimizer_cases.py").read_text()


@dataclass
class Session:
    """The same cases four times: without and with NaN, plain and guarded."""

    outcomes: dict[str, Outcome]
    records: dict[str, Record]

    def reported(self, which: str) -> dict[str, Any]:
        lines = self.outcomes[which].lines
        return {word: json.loads(rest) for word, _, rest in (line.partition(" ") for line in lines)}

    def lane(self, which: str, case: str) -> LaneData:
        record = self.records[which]
        pid = self.reported(which)[case]["pid"]
        for name in record.lanes:
            if any(e.data["pid"] == pid for e in record.events("start", name)):
                return record.lane(name)
        raise LookupError(f"{case} has no lane among {record.lanes}")

    def result(self, which: str, case: str) -> dict[str, Any]:
        return {k: v for k, v in self.reported(which)[case].items() if k != "pid"}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    benches = {word: Bench(tmp_path_factory.mktemp(word)) for word in ("healthy", "poisoned")}
    outcomes: dict[str, Outcome] = {}
    with ThreadPoolExecutor(2) as pool:
        futures = {}
        for word, bench in benches.items():
            script = bench.write(CASES, "cases.py")
            futures[f"plain {word}"] = pool.submit(bench.plain, script, word)
            futures[f"guarded {word}"] = pool.submit(bench.guarded, script, word)
        outcomes = {word: future.result() for word, future in futures.items()}
    for word, outcome in outcomes.items():
        assert outcome.code == 0, (word, outcome.reported)
    return Session(outcomes, {f"guarded {w}": b.record for w, b in benches.items()})


SKIPPED = {
    # name of the case: rows in all, steps skipped as (step, optimizer)
    "gan": (20, [(4, 0)]),
    "shared_loss": (20, [(4, 0), (4, 1)]),
    "closure_sgd": (10, [(4, 0)]),
    "closure_adam": (10, [(4, 0)]),
    "closure_keyword": (10, [(4, 0)]),
    # The third micro-batch of four is bad and its loss is not: all four go through once more.
    "accumulation": (11, [(4, 0), (5, 0)]),
    "compiled_model": (10, [(4, 0)]),
    "averaged": (10, [(4, 0)]),
    "added_group": (10, [(4, 0)]),
    "half_and_double": (10, [(4, 0)]),
    "complex_weights": (10, [(4, 0)]),
    "sparse": (10, [(4, 0)]),
    "clipped": (10, [(4, 0)]),
    "checkpointed": (10, [(4, 0)]),
    "gradient_penalty": (10, [(4, 0)]),
    "vector_loss": (10, [(4, 0)]),
    "frozen_at_first": (10, [(4, 0)]),
    "own_subclass": (10, [(4, 0)]),
    "scheduler": (10, [(4, 0)]),
    "first_step": (10, [(0, 0)]),
    "exception_in_backward": (10, [(4, 0)]),
}
SCALED = ("scaler", "scaler_fused")
NOT_COVERED = ("lbfgs", "by_hand", "foreign_optimizer", "compiled_step")


def test_nobody_is_missing(session: Session):
    assert set(session.reported("plain healthy")) == {*SKIPPED, *SCALED, *NOT_COVERED}
    for word in ("healthy", "poisoned"):
        assert session.outcomes[f"guarded {word}"].err == session.outcomes[f"plain {word}"].err
        assert len(session.records[f"guarded {word}"].lanes) == len(
            session.reported("plain healthy")
        )


@pytest.mark.parametrize("case", [*SKIPPED, *SCALED, *NOT_COVERED])
def test_a_healthy_training_is_the_same_to_the_last_bit(session: Session, case: str):
    assert session.result("guarded healthy", case) == session.result("plain healthy", case)
    lane = session.lane("guarded healthy", case)
    assert lane.findings == []
    assert [e.data for e in lane.events if e.kind == "holdfast_error"] == []
    if case not in NOT_COVERED:
        assert not lane.steps["skipped"].any()
        assert len(lane.steps) == SKIPPED.get(case, (10, []))[0] - (case == "accumulation")
        assert [e for e in lane.events if e.kind == "not_covered"] == []


@pytest.mark.parametrize("case", SKIPPED)
def test_the_poisoned_step_and_no_other_is_left_out(session: Session, case: str):
    assert not session.result("plain poisoned", case)["finite"], "the poison must be one"
    assert session.result("guarded poisoned", case)["finite"]
    lane = session.lane("guarded poisoned", case)
    rows = lane.steps
    count, skipped = SKIPPED[case]
    assert len(rows) == count
    left_out = rows[rows["skipped"] > 0]
    assert list(zip(left_out["step"].tolist(), left_out["opt"].tolist(), strict=True)) == skipped
    assert sorted(set(rows["step"].tolist())) == list(range(10 + (case == "accumulation")))
    assert [e.data for e in lane.events if e.kind in ("holdfast_error", "not_covered")] == []
    assert {f.step for f in lane.findings} == {skipped[0][0]}
    assert lane.findings[0].code in ("NUM001", "NUM002", "NUM005")


def test_layers_are_named_as_the_user_knows_them(session: Session):
    for case in ("compiled_model", "closure_sgd", "averaged"):
        lane = session.lane("guarded poisoned", case)
        layers = next(e.data["layers"] for e in lane.events if e.kind == "optimizer")
        assert layers[0] == "0.weight", case


def test_a_poisoned_micro_batch_is_named_wherever_it_stands_in_its_window(session: Session):
    """Sample 130 is in the first of four micro-batches of step 4."""
    lane = session.lane("guarded poisoned", "accumulation")
    assert set(lane.steps["backwards"]) == {4.0}
    assert lane.findings[0].code == "NUM005"
    assert any(130 in bad[2] for batch in lane.batches for bad in batch["bad"])


@pytest.mark.parametrize("case", SCALED)
def test_a_step_the_scaler_skips_is_counted_once(session: Session, case: str):
    reported = session.result("guarded poisoned", case)
    assert reported == session.result("plain poisoned", case) and reported["finite"]
    rows = session.lane("guarded poisoned", case).steps
    assert rows["step"].tolist() == list(range(10))
    assert rows["step"][rows["scaler_skipped"] > 0].tolist() == [4]
    assert [float(s) for s in rows["scale"][3:6]] == [1024.0, 1024.0, 512.0]
    assert all(abs(loss) < 1e3 for loss in rows["loss"] if math.isfinite(loss)), "not the scaled"


@pytest.mark.parametrize("case", NOT_COVERED)
def test_what_cannot_be_skipped_is_detected_and_said(session: Session, case: str):
    """Training goes where it would have gone without us; the user is told where and why."""
    same = (session.result(f"{way} poisoned", case) for way in ("guarded", "plain"))
    assert next(same)["finite"] == next(same)["finite"]
    lane = session.lane("guarded poisoned", case)
    assert [e.data for e in lane.events if e.kind == "holdfast_error"] == []
    said = [e.data for e in lane.events if e.kind == "not_covered"]
    assert len(said) == 1
    why = {"lbfgs": "LBFGS", "by_hand": "by hand", "foreign_optimizer": "another kind"}
    assert why.get(case, "") in f"{said[0]['what']}: {said[0]['why']}"
    assert not (lane.steps["skipped"] > 0).any()
    first = next(f for f in lane.findings if f.code == "NUM001")
    assert first.step == 4
    assert "skipped: " not in first.message or "NOT skipped: " in first.message
