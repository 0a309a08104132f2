from __future__ import annotations

import numpy as np
import pytest

from holdfast.detectors import Window
from holdfast.detectors._remedies.explanation import Explanation
from holdfast.detectors.nonfinite_input import NonfiniteInput
from holdfast.records.nonfinite import Cause, TensorStats
from holdfast.types import Finding, Severity

NAN = np.nan


def scan(rows, batches=None):
    return list(NonfiniteInput().scan(Window(rows=rows, fresh=len(rows), batches=batches or {})))


@pytest.fixture
def poisoned(make_rows):
    return make_rows(4, input_bad={3: 1}, loss={3: NAN}, loss_bad={3: 1}, skipped={3: 1})


def test_names_the_sample_and_the_field(poisoned):
    batch = {"step": 3, "indices": [7, 20817, 4], "worker": 2, "bad": [["batch[0]", [1], [20817]]]}
    (finding,) = scan(poisoned, {3: batch})
    assert finding.message == (
        "step 3 skipped: 1 tensor of the input batch holds NaN or inf in batch[0]: "
        "dataset index 20817"
    )
    assert finding.evidence["samples"] == [20817]
    assert finding.evidence["worker"] == 2
    assert "dataset[20817]" in finding.advice


def test_many_samples_are_cut_in_the_message_and_kept_as_evidence(poisoned):
    batch = {"step": 3, "indices": list(range(50)), "bad": [["x", [], list(range(20))]]}
    (finding,) = scan(poisoned, {3: batch})
    assert "dataset indices 0, 1, 2, 3, 4, 5, 6, 7, …" in finding.message
    assert finding.evidence["samples"] == list(range(20))


@pytest.mark.parametrize(
    "batch",
    [
        {},
        {"step": 3, "indices": None, "bad": [["x", [1], []]]},
        {"bad": "nonsense", "indices": 3},
        {"bad": [[], ["x"], None], "indices": [1]},
        {"bad": [["x", [0]]], "indices": [1]},
    ],
)
def test_without_a_usable_record_it_says_that_the_index_is_unknown(poisoned, batch):
    (finding,) = scan(poisoned, {3: batch})
    assert "dataset index not recorded" in finding.message


def test_it_beats_every_other_explanation(make_rows):
    rows = make_rows(
        2, input_bad={1: 2}, loss_bad={1: 1}, grad_bad={1: 4}, param_bad={1: 1}, buffer_bad={1: 1}
    )
    (finding,) = scan(rows)
    assert "2 tensors of the input batch hold NaN" in finding.message


def test_a_step_that_did_not_suffer_is_no_finding(make_rows):
    assert not scan(make_rows(4, input_bad=1))


def test_where_the_cause_is_another_it_says_so(make_event):
    """A model that masks what is missing has NaN in every batch, and a log of 0 in one."""
    zero = TensorStats(shape=(8,), dtype="float32", min=0.0, max=1.0, zeros=1, numel=8)
    reported = Cause(
        how="replay", phase="forward", op="log", file="t.py", line=3, inputs=(zero,),
        code="loss = torch.log(p).mean()", output=zero.replace(inf=1),
    )  # fmt: skip
    finding = Finding(
        code="NUM005", name="nonfinite_input", severity=Severity.WARNING, step=3, message="bad",
        advice="look", evidence={"opt": 0},
    )  # fmt: skip
    for data, said in (reported, "bad; the cause is another"), (reported.replace(inputs=()), "bad"):
        cause = Explanation.of(make_event("cause", 0, 3, **data.to_dict()))
        assert cause is not None and cause.added_to(finding).message == said
        assert cause.added_to(cause.added_to(finding)).message == said
