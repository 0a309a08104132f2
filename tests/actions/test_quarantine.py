"""Who gets into quarantine, who does not, and what a loader draws instead."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset, TensorDataset

from holdfast.actions.quarantine import Quarantine
from holdfast.config import QuarantineSettings
from holdfast.probes.batches import Batch
from holdfast.records.nonfinite import Cause
from holdfast.records.steps import Quarantined

NAN = float("nan")


def rows(count: int, *bad: int, width: int = 2) -> Tensor:
    made = torch.ones(count, width)
    made[list(bad), 0] = NAN
    return made


def batch(content: Any, indices: list[Any] | None, dataset: Any, worker: int = -1) -> Batch:
    return Batch(content, indices, worker, 0, dataset=lambda: dataset)


def cause(row: int = 1, sample: int = 11, **given: Any) -> Cause:
    known: dict[str, Any] = {
        "how": "replay", "phase": "forward", "op": "log", "file": "train.py", "line": 7,
        "dtype": "float32", "samples": ((row, sample),), **given,
    }  # fmt: skip
    return Cause(**known)


@pytest.fixture
def data() -> TensorDataset:
    return TensorDataset(torch.zeros(100, 2))


@pytest.fixture
def quarantine() -> Quarantine:
    return Quarantine(QuarantineSettings(skip=True))


def named(records: list[Quarantined]) -> list[Any]:
    return [record.index for record in records]


# ---------------------------------------------------------------- what a batch holds


def test_a_row_that_holds_nan_names_its_sample(quarantine: Quarantine, data: TensorDataset) -> None:
    given = [rows(4, 2), torch.arange(4)]
    bad, found = quarantine.look([batch(given, [10, 11, 12, 13], data, worker=3)])
    assert bad == 1
    assert found == [
        Quarantined(
            index=12, reason="batch[0] holds non-finite values", tensor="batch[0]", position=2,
            worker=3, dataset="TensorDataset", sample=12, length=100, skip=True,
        )
    ]  # fmt: skip


def test_a_sample_is_named_once(quarantine: Quarantine, data: TensorDataset) -> None:
    both = {"x": rows(4, 2), "y": rows(4, 2)}
    assert named(quarantine.look([batch(both, [10, 11, 12, 13], data)])[1]) == [12]
    assert quarantine.look([batch(rows(3, 0), [12, 1, 2], data)]) == (1, [])


@pytest.mark.parametrize(
    ("content", "indices", "expected"),
    [
        pytest.param(rows(4), [0, 1, 2, 3], [], id="nothing bad"),
        pytest.param(rows(4, 0, 1, 2, 3), [0, 1, 2, 3], [], id="the whole batch"),
        pytest.param(rows(4, 0, 1, 2), [0, 1, 2, 3], [], id="more than half of it"),
        pytest.param(rows(4, 0, 1), [0, 1, 2, 3], [0, 1], id="half of it"),
        pytest.param(rows(1, 0), [7], [7], id="a batch of one"),
        pytest.param(rows(9, 8), [7], [7], id="a sample that was not collated"),
        pytest.param(rows(9, 2), [0, 1, 2, 3], [], id="rows that are no samples"),
        pytest.param(rows(4, 2), None, [], id="indices unknown"),
        pytest.param(rows(4, 2), ["a", "b", "c", "d"], ["c"], id="keys for indices"),
    ],
)
def test_only_samples_that_really_hold_such_values(
    quarantine: Quarantine, data: TensorDataset, content: Any, indices: Any, expected: Any
) -> None:
    assert named(quarantine.look([batch(content, indices, data)])[1]) == expected


def test_micro_batches_of_one_are_weighed_together(
    quarantine: Quarantine, data: TensorDataset
) -> None:
    mask = [batch(rows(1, 0), [i], data) for i in range(4)]
    assert quarantine.look(mask) == (4, [])
    one = [batch(rows(1, *([0] * (i == 2))), [i], data) for i in range(4)]
    assert named(quarantine.look(one)[1]) == [2]


def test_a_dataset_that_is_gone_or_unknown_is_no_error(quarantine: Quarantine) -> None:
    assert quarantine.look([batch(rows(4, 2), [0, 1, 2, 3], None)]) == (1, [])
    assert quarantine.look([Batch(rows(4, 2), [0, 1, 2, 3], -1, 0)]) == (1, [])


def test_switched_off_it_only_counts(data: TensorDataset) -> None:
    off = Quarantine(QuarantineSettings(write=False, skip=True))
    assert off.look([batch(rows(4, 2), [0, 1, 2, 3], data)]) == (1, [])
    assert off.accuse(cause()) == []
    assert not off.skips


# ---------------------------------------------------------------- what an exam says


def test_an_exam_names_a_sample_before_or_after_its_batch_is_reported(data: TensorDataset) -> None:
    for first in ("exam", "batch"):
        quarantine = Quarantine(QuarantineSettings())
        found: list[Quarantined] = []
        if first == "exam":
            found += quarantine.accuse(cause())
        found += quarantine.look([batch(rows(3), [10, 11, 12], data)])[1]
        if first == "batch":
            found += quarantine.accuse(cause())
        assert named(found) == [11]
        assert found[0].reason == "log at train.py:7 makes non-finite values from it"
        assert found[0].skip is False


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"samples": ()}, id="several rows"),
        pytest.param({"phase": "parameter"}, id="the weights"),
        pytest.param({"phase": "backward", "dtype": "float16"}, id="overflow on the way back"),
        pytest.param({"sample": 99}, id="of another batch"),
    ],
)
def test_an_exam_that_blames_something_else_convicts_nobody(
    quarantine: Quarantine, data: TensorDataset, given: dict[str, Any]
) -> None:
    quarantine.look([batch(rows(3), [10, 11, 12], data)])
    assert quarantine.accuse(cause(**given)) == []
    assert not quarantine.skips


def test_alone_in_its_batch_a_sample_must_hold_the_values(
    quarantine: Quarantine, data: TensorDataset
) -> None:
    quarantine.look([batch(None, [11], data)])
    assert quarantine.accuse(cause(row=0)) == []
    assert named(quarantine.accuse(cause(row=0, phase="input"))) == [11]


# ---------------------------------------------------------------- what is drawn instead


def poisoned(dataset: Any, *samples: int, **settings: Any) -> Quarantine:
    made = Quarantine(QuarantineSettings(**{"skip": True, **settings}))
    for sample in samples:
        found = made.look([batch(rows(1, 0), [sample], dataset)])[1]
        assert named(found) == [sample]
    return made


def iterator(dataset: Any, drop_last: bool = False) -> Any:
    return iter(DataLoader(dataset, 4, drop_last=drop_last))


def test_they_are_left_out_and_the_draw_itself_is_not_changed(data: TensorDataset) -> None:
    quarantine = poisoned(data, 3, 5)
    drawn = [3, 4, 5, 6]
    assert quarantine.kept(iterator(data), drawn, equal=False) == [4, 6]
    assert drawn == [3, 4, 5, 6], "a sampler may keep and give the same list again"
    assert quarantine.left_out == 2
    good = [0, 1]
    assert quarantine.kept(iterator(data), good, equal=False) is good


def test_a_batch_of_them_alone_is_drawn_anew(data: TensorDataset) -> None:
    quarantine = poisoned(data, 3, 5)
    assert quarantine.kept(iterator(data), [3, 5], equal=False) is None
    assert quarantine.kept(iter(DataLoader(data, batch_size=None)), 3, equal=False) is None
    assert quarantine.kept(iter(DataLoader(data, batch_size=None)), 4, equal=False) == 4


def test_where_the_count_must_stay_others_come_twice(data: TensorDataset) -> None:
    quarantine = poisoned(data, 3, 5)
    assert quarantine.kept(iterator(data), [3, 4, 5, 6], equal=True) == [4, 4, 6, 6]
    assert quarantine.kept(iterator(data, drop_last=True), [3, 4, 7, 6], equal=False) == [
        4,
        4,
        7,
        6,
    ]
    assert quarantine.kept(iterator(data), (3, 4), equal=False) == (4, 4), "BatchNorm needs two"
    alone = [3, 5]
    assert quarantine.kept(iterator(data), alone, equal=True) is alone, "nobody can stand in"


def test_indices_may_be_tensors(data: TensorDataset) -> None:
    quarantine = poisoned(data, 3)
    kept = quarantine.kept(iterator(data), list(torch.tensor([2, 3, 4])), equal=False)
    assert [int(i) for i in kept] == [2, 4]


def test_other_datasets_are_none_of_its_business(data: TensorDataset) -> None:
    quarantine = poisoned(data, 3)
    other = TensorDataset(torch.zeros(100, 2))
    drawn = [3, 4]
    assert quarantine.kept(iterator(other), drawn, equal=False) is drawn


def test_a_sample_is_known_behind_every_wrapper(data: TensorDataset) -> None:
    quarantine = poisoned(Subset(data, [50, 51]), 1)
    assert quarantine.kept(iterator(data), [49, 50, 51], equal=False) == [49, 50]
    fold = Subset(data, list(range(40, 60)))
    assert quarantine.kept(iterator(fold), [10, 11, 12], equal=False) == [10, 12]
    wrong = [10, 99]
    assert quarantine.kept(iterator(fold), wrong, equal=False) is wrong, "torch says what is wrong"


def test_a_list_is_recognised_though_nothing_can_refer_to_it_weakly() -> None:
    numbers = [object() for _ in range(8)]
    quarantine = poisoned(numbers, 3)
    assert quarantine.kept(iterator(numbers), [2, 3, 4], equal=False) == [2, 4]
    numbers.append(object())
    longer = [2, 3, 4]
    assert quarantine.kept(iterator(numbers), longer, equal=False) is longer


def test_datasets_are_not_kept_alive() -> None:
    data = TensorDataset(torch.zeros(8, 2))
    watch = weakref.ref(data)
    quarantine = Quarantine(QuarantineSettings(skip=True))
    assert quarantine.look([Batch(rows(4, 3), [0, 1, 2, 3], -1, 0, dataset=watch)])[1]
    del data
    gc.collect()
    assert watch() is None
    stranger = SimpleNamespace(_dataset=TensorDataset(torch.zeros(8, 2)))
    drawn = [2, 3, 4]
    assert quarantine.kept(stranger, drawn, equal=False) is drawn
