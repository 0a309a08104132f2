"""From the index a loader draws to the dataset that holds the sample, and to its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import ConcatDataset, Dataset, Subset

from holdfast.probes.sample_files import file_of, innermost, length_of


class Files(Dataset[Any]):
    """Keeps its paths under a name of choice."""

    def __init__(self, name: str, entries: Any, length: int | None = None) -> None:
        setattr(self, name, entries)
        self.length = len(entries) if length is None else length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("naming a sample must not load it")


def test_wrappers_are_followed_inwards() -> None:
    first, second = Files("files", list("abc")), Files("files", list("defgh"))
    joined = ConcatDataset([first, second])
    assert innermost(joined, 2) == (first, 2)
    assert innermost(joined, 3) == (second, 0)
    assert innermost(joined, -1) == (second, 4)
    assert innermost(Subset(joined, [7, 0]), 0) == (second, 4)
    indices: Any = np.array([2, 1])
    assert innermost(Subset(Subset(first, indices), [1, 0]), 1) == (first, 2)


def test_what_is_no_number_is_left_alone() -> None:
    keyed = {"a": 1}
    assert innermost(keyed, "a") == (keyed, "a")
    data = Subset(Files("files", list("abc")), [2])
    assert innermost(data, (0, 1)) == (data, (0, 1))


@pytest.mark.parametrize(
    ("name", "entries"),
    [
        ("samples", [("a.png", 0), ("b.png", 1)]),
        ("imgs", [["a.png", 0], ["b.png", 1]]),
        ("files", ("a.png", "b.png")),
        ("paths", [Path("a.png"), Path("b.png")]),
        ("filenames", np.array(["a.png", "b.png"])),
        ("image_paths", ["a.png", "b.png"]),
    ],
)
def test_the_file_is_taken_from_a_list_of_the_length_of_the_dataset(
    name: str, entries: Any
) -> None:
    assert file_of(Files(name, entries), 1) == "b.png"
    assert file_of(Files(name, entries, length=3), 1) == "", "of other things than the samples"
    assert file_of(Files(name, entries), 5) == ""
    assert file_of(Files("labels", entries), 1) == ""


def test_lists_of_other_things_name_no_file() -> None:
    assert file_of(Files("samples", [0.5, 0.25]), 1) == ""
    assert file_of(Files("samples", [(), ()]), 1) == ""
    assert file_of([1.0, 2.0], 1) == ""
    assert file_of(Files("files", ["a"]), "a") == ""


def test_properties_are_not_asked() -> None:
    class Lazy(Files):
        @property
        def files(self) -> list[str]:
            raise AssertionError("this may read a whole index from a network drive")

    assert file_of(Lazy("other", ["a"]), 0) == ""


def test_a_dataset_without_a_length_has_none() -> None:
    class Endless(Dataset[Any]):
        pass

    assert length_of(Endless()) == -1
    assert length_of([1, 2]) == 2
