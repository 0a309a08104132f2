"""Folders of mapped tensors: what is written is read, by any process, or refused in one line."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, default_collate

from holdfast.errors import UsageError
from holdfast.training.data.gathered import Gathered, collate
from holdfast.training.data.loading import DataSettings, make_loader
from holdfast.training.data.tensor_files import HEADER, MappedTensors, TensorWriter, write_tensors
from holdfast.training.device import Place

CPU = Place(torch.device("cpu"))
X = torch.arange(60.0).view(10, 3, 2)
Y = torch.arange(10)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tensors(tmp_path / "set", {"x": X, "y": Y})
    return tmp_path / "set"


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.complex64],
)
def test_every_dtype_comes_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    values = (torch.randn(6, 2) * 3).to(dtype)
    write_tensors(tmp_path, {"v": values})
    (row,) = MappedTensors(tmp_path)[4]
    assert row.dtype == dtype and torch.equal(row, values[4])
    (batch,) = collate(MappedTensors(tmp_path).__getitems__([5, 0, 5]))
    assert torch.equal(batch, values[[5, 0, 5]])


def test_samples_are_tuples_or_dicts_of_the_keys_asked_for(folder: Path) -> None:
    x, y = MappedTensors(folder)[3]
    assert torch.equal(x, X[3]) and torch.equal(y, torch.tensor(3))
    assert list(MappedTensors(folder, ["y", "x"], form="dict")[-1]) == ["y", "x"]
    assert MappedTensors(folder, ["y"])[-1] == (torch.tensor(9),)
    with pytest.raises(UsageError, match=r"set: no tensor 'z'; there are x, y"):
        MappedTensors(folder, ["z"])
    with pytest.raises(IndexError, match="sample 10 of 10"):
        MappedTensors(folder)[10]


def test_a_batch_gathered_at_once_equals_one_of_single_samples(folder: Path) -> None:
    for form in ("tuple", "dict"):
        data = MappedTensors(folder, form=form)
        gathered: Any = data.__getitems__([7, 1, 1])
        single = default_collate([data[i] for i in (7, 1, 1)])
        # A collate function that does not know what it is given sees samples.
        for batch in (collate(gathered), default_collate(gathered), default_collate(gathered[:])):
            assert isinstance(batch, dict) is (form == "dict")
            pairs = zip(values(batch), values(single), strict=True)
            assert all(torch.equal(one, other) for one, other in pairs)


def values(batch: Any) -> list[Any]:
    return list(batch.values()) if isinstance(batch, dict) else list(batch)


def test_samples_without_a_gathered_batch_are_collated_as_ever() -> None:
    assert torch.equal(collate([torch.tensor(1), torch.tensor(2)]), torch.tensor([1, 2]))
    assert len(Gathered((X,), 10)) == 10


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "start"), [(0, "auto"), (2, "fork"), (1, "forkserver")])
def test_workers_of_any_kind_read_it(folder: Path, workers: int, start: Any) -> None:
    data = MappedTensors(folder)
    assert data[0][1] == 0  # mapped here already, before a worker is started
    settings = DataSettings(batch=4, start=start)
    loader = make_loader(data, settings, CPU, train=False, seed=0, workers=workers)
    batches = list(loader)
    assert torch.equal(torch.cat([x for x, _ in batches]), X)
    assert torch.equal(torch.cat([y for _, y in batches]), Y)
    loader.close()


def test_it_works_in_a_loader_and_a_subset_of_torch(folder: Path) -> None:
    part = Subset(MappedTensors(folder), [1, 3, 5])
    (x, y), _ = DataLoader(part, 2)
    assert torch.equal(x, X[[1, 3]]) and y.tolist() == [1, 3]


def test_pickling_and_copying_leave_the_numbers_behind(tmp_path: Path) -> None:
    write_tensors(tmp_path, {"big": torch.zeros(1 << 20)})
    data = MappedTensors(tmp_path)
    assert data[0] == (torch.tensor(0.0),)
    assert len(pickle.dumps(data)) < 2000
    assert copy.deepcopy(data)[5] == (torch.tensor(0.0),)


def test_changing_a_sample_changes_nothing_else(folder: Path) -> None:
    data = MappedTensors(folder)
    data[0][0].fill_(-1)
    collate(data.__getitems__([0, 1]))[0].fill_(-1)
    assert torch.equal(data[0][0], X[0])


def test_chunks_make_one_set(tmp_path: Path) -> None:
    def chunks() -> Iterator[dict[str, Any]]:
        for first in range(0, 10, 3):
            part = X[first : first + 3]
            yield {"x": part.transpose(1, 2), "y": Y[first : first + 3].numpy()}

    with TensorWriter(tmp_path) as writer:
        for chunk in chunks():
            writer.append(chunk)
        assert writer.length == 10
    data = MappedTensors(tmp_path)
    assert len(data) == 10 and torch.equal(data[9][0], X[9].T) and data[9][1] == 9


def test_lists_and_arrays_are_taken_too(tmp_path: Path) -> None:
    write_tensors(tmp_path, {"a": [1, 2], "b": np.ones((2, 2), dtype=np.float32)})
    assert MappedTensors(tmp_path).kinds == {"a": (torch.int64, ()), "b": (torch.float32, (2,))}


def test_an_empty_set_can_be_read(tmp_path: Path) -> None:
    write_tensors(tmp_path, {"x": torch.zeros(0, 3)})
    data = MappedTensors(tmp_path)
    assert len(data) == 0 and data.mapped("x").shape == (0, 3)


def test_writing_that_is_cut_short_leaves_no_set(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), TensorWriter(tmp_path) as writer:
        writer.append({"x": X})
        raise RuntimeError("the disk is gone")
    with pytest.raises(UsageError, match=r"tensors.json: No such file.*no complete folder"):
        MappedTensors(tmp_path)


def test_a_set_is_not_overwritten_unless_asked(folder: Path) -> None:
    with pytest.raises(UsageError, match="already holds tensors; write elsewhere"):
        write_tensors(folder, {"x": X[:2]})
    assert len(MappedTensors(folder)) == 10
    write_tensors(folder, {"x": X[:2]}, overwrite=True)
    assert len(MappedTensors(folder)) == 2


@pytest.mark.parametrize(
    ("chunks", "text"),
    [
        ([{"x": X, "y": Y[:3]}], "unequal lengths \\(x 10, y 3\\)"),
        ([{"x": torch.tensor(1.0)}], "unequal lengths \\(x None\\)"),
        ([{}], "unequal lengths \\(nothing\\)"),
        ([{"x": X}, {"x": X.double()}], r"x float64\[3, 2\] after x float32\[3, 2\]"),
        ([{"x": X}, {"z": X}], r"z float32\[3, 2\] after x"),
        ([{"../x": X}], "'../x' cannot name a file"),
        ([{"x": torch.zeros(2, dtype=torch.float8_e5m2)}], "x is torch.float8_e5m2; use one of"),
        ([], "nothing was written"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path: Path, chunks: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text), TensorWriter(tmp_path / "set") as writer:
        for chunk in chunks:
            writer.append(chunk)


def damage(folder: Path, what: str) -> None:
    header = json.loads((folder / HEADER).read_text())
    if what == "torn":
        with (folder / "y.bin").open("r+b") as file:
            file.truncate(72)
        return
    if what == "missing":
        (folder / "x.bin").unlink()
        return
    changed: dict[str, Any] = {
        "format": {"format": "something else"},
        "length": {"length": -1},
        "order": {"byteorder": "middle"},
        "dtype": {"tensors": {"x": {"dtype": "float31", "shape": []}}},
        "path": {"tensors": {"../x": {"dtype": "float32", "shape": []}}},
        "none": {"tensors": {}},
        "text": {},
    }[what]
    text = "{" if what == "text" else json.dumps({**header, **changed})
    (folder / HEADER).write_text(text)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("torn", r"y.bin: has 72 bytes, tensors.json says 80; it is torn"),
        ("missing", r"x.bin: No such file or directory; write the folder again"),
        ("format", r"tensors.json: not a description of tensors .*something else"),
        ("length", r"not a description of tensors .*-1"),
        ("order", r"not a description of tensors .*middle-endian"),
        ("dtype", r"not a description of tensors \(KeyError: 'float31'\)"),
        ("path", r"names tensors that cannot be"),
        ("none", r"names tensors that cannot be"),
        ("text", r"not a description of tensors \(JSONDecodeError"),
    ],
)
def test_a_damaged_folder_is_one_line(folder: Path, what: str, text: str) -> None:
    damage(folder, what)
    with pytest.raises(UsageError, match=text) as caught:
        MappedTensors(folder)
    assert "\n" not in str(caught.value)


def test_a_file_torn_after_opening_is_seen_before_it_is_mapped(folder: Path) -> None:
    data = MappedTensors(folder)
    damage(folder, "torn")
    with pytest.raises(UsageError, match="it is torn"):
        data[0]


def test_a_default_device_does_not_leak_into_mapped_tensors(folder: Path) -> None:
    torch.set_default_device("meta")
    try:
        write_tensors(folder, {"x": [1.0, 2.0]}, overwrite=True)
        data = MappedTensors(folder)
        assert data[1][0].tolist() == 2.0
        assert collate(data.__getitems__([1, 0]))[0].tolist() == [2.0, 1.0]
    finally:
        torch.set_default_device(None)
