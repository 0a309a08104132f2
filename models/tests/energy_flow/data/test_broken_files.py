"""Every broken file of embeddings is one line on the command line: what, where, what to do."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save, save_file

from holdfast.cli import main
from holdfast.training import write_tensors
from holdfast_models.energy_flow.data.text_pairs import TextPair, write_pairs

X = torch.randn(40, 8, generator=torch.Generator().manual_seed(1))


class Thing:
    """What a file may hold beside tensors."""


def cut(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])


def with_nan() -> torch.Tensor:
    bad = X.clone()
    bad[7, 3] = torch.nan
    return bad


def text_named_pt(at: Path) -> str:
    (at / "a.pt").write_text("input_embeddings, target_embeddings\n")
    return "a.pt"


def truncated_pt(at: Path) -> str:
    torch.save({"x": X, "y": X.clone()}, at / "a.pt")
    cut(at / "a.pt")
    return "a.pt"


def truncated_old_pt(at: Path) -> str:
    torch.save(X, at / "a.pt", _use_new_zipfile_serialization=False)
    cut(at / "a.pt")
    return "a.pt"


def objects_in_pt(at: Path) -> str:
    torch.save({"x": X, "y": Thing()}, at / "a.pt")
    return "a.pt"


def objects_in_old_pt(at: Path) -> str:
    torch.save(Thing(), at / "a.pt", _use_new_zipfile_serialization=False)
    return "a.pt"


def plain_pickle(at: Path) -> str:
    (at / "a.pt").write_bytes(pickle.dumps(Thing()))
    return "a.pt"


def truncated_safetensors(at: Path) -> str:
    save_file({"x": X, "y": X.clone()}, at / "a.safetensors")
    cut(at / "a.safetensors")
    return "a.safetensors"


def text_named_safetensors(at: Path) -> str:
    (at / "a.safetensors").write_text("not at all")
    return "a.safetensors"


def truncated_npy(at: Path) -> str:
    np.save(at / "a.npy", X.numpy())
    cut(at / "a.npy")
    return "a.npy"


def objects_in_npy(at: Path) -> str:
    np.save(at / "a.npy", np.array([Thing(), None]), allow_pickle=True)
    return "a.npy"


def text_named_npy(at: Path) -> str:
    (at / "a.npy").write_text("1, 2, 3")
    return "a.npy"


def structured_npy(at: Path) -> str:
    np.save(at / "a.npy", np.zeros(3, dtype=[("a", "f4"), ("b", "i8")]))
    return "a.npy"


def wrong_keys(at: Path) -> str:
    torch.save({"a": X, "b": X}, at / "a.pt")
    return "a.pt"


def no_dict(at: Path) -> str:
    torch.save([1, 2, 3], at / "a.pt")
    return "a.pt"


def wrong_dims(at: Path) -> str:
    np.save(at / "a.npy", X.numpy().reshape(10, 4, 8))
    return "a.npy"


def whole_numbers(at: Path) -> str:
    np.save(at / "a.npy", np.ones((40, 8), dtype=np.int32))
    return "a.npy"


def sparse(at: Path) -> str:
    torch.save({"x": X.to_sparse(), "y": X}, at / "a.pt")
    return "a.pt"


def non_finite(at: Path) -> str:
    torch.save({"x": X, "y": with_nan()}, at / "a.pt")
    return "a.pt"


def unequal_rows(at: Path) -> str:
    torch.save({"x": X, "y": X[:30]}, at / "a.pt")
    return "a.pt"


def another_width(at: Path) -> str:
    np.save(at / "a.npy", np.ones((40, 6), dtype=np.float32))
    return "a.npy"


def mixed_widths(at: Path) -> str:
    np.save(at / "good.npy", X.numpy())
    np.save(at / "a.npy", np.ones((40, 6), dtype=np.float32))
    return f"good.npy,{at}/a.npy"


def some_texts(at: Path) -> str:
    np.save(at / "a.npy", X.numpy())
    write_tensors(at / "set", {"x": X})
    write_pairs(at / "set" / "texts.jsonl", [TextPair(f"a{n}", "b") for n in range(40)])
    return f"set,{at}/a.npy"


def twice(at: Path) -> str:
    np.save(at / "a.npy", X.numpy())
    return f"a.npy,{at}/a.npy"


def empty(suffix: str) -> Callable[[Path], str]:
    def make(at: Path) -> str:
        (at / f"a{suffix}").touch()
        return f"a{suffix}"

    make.__name__ = f"empty{suffix}"
    return make


def empty_folder(at: Path) -> str:
    (at / "set").mkdir()
    return "set"


def folder_of_other_files(at: Path) -> str:
    (at / "set").mkdir()
    torch.save(X, at / "set" / "a.pt")
    return "set"


def torn_folder(at: Path) -> str:
    write_tensors(at / "set", {"x": X, "y": X})
    cut(at / "set" / "y.bin")
    return "set"


def missing_texts(at: Path) -> str:
    write_tensors(at / "set", {"x": X, "y": X})
    write_pairs(at / "set" / "texts.jsonl", [TextPair("a", "b")])
    return "set"


def bad_texts(at: Path) -> str:
    write_tensors(at / "set", {"x": X, "y": X})
    (at / "set" / "texts.jsonl").write_text('{"input": 3}\n' * 40)
    return "set"


def missing(at: Path) -> str:
    return "a.pt"


def uneven_words(at: Path) -> str:
    (at / "a.txt").write_text("the 1 2 3 4 5 6 7 8\nof 1 2 3\n")
    return "a.txt"


def prose(at: Path) -> str:
    (at / "a.txt").write_text("These are the first words of a novel.\n" * 3)
    return "a.txt"


def binary_words(at: Path) -> str:
    (at / "a.vec").write_bytes(b"40 8\n" + save({"x": X}))
    return "a.vec"


def words_with_nan(at: Path) -> str:
    (at / "a.txt").write_text("the 1 2 3 4 5 6 7 8\nof 1 2 nan 4 5 6 7 8\n")
    return "a.txt"


BROKEN = [
    (text_named_pt, "no torch file, it begins with"),
    (truncated_pt, "is damaged or cut short"),
    (truncated_old_pt, "is damaged or cut short"),
    (objects_in_pt, "Thing, not only tensors"),
    (objects_in_old_pt, "Thing, not only tensors"),
    (plain_pickle, "is damaged or cut short"),
    (truncated_safetensors, "no safetensors file, or cut short"),
    (text_named_safetensors, "no safetensors file, or cut short"),
    (truncated_npy, "no numpy file, or cut short"),
    (objects_in_npy, "holds Python objects"),
    (text_named_npy, "no numpy file, or cut short"),
    (structured_npy, "no numpy file, or cut short"),
    (wrong_keys, "holds a, b; it has to hold input_embeddings and target_embeddings"),
    (no_dict, "holds list; it has to hold"),
    (wrong_dims, "inputs: float32 of shape [10, 4, 8]"),
    (whole_numbers, "inputs: int32 of shape [40, 8]"),
    (sparse, "inputs: float32 of shape [40, 8]"),
    (non_finite, "targets: 1 of 40 rows are not finite or have a norm outside 0.01 to 100: 7;"),
    (unequal_rows, "inputs [40, 8] and targets [30, 8]"),
    (another_width, "width 6, data.width is 8; set data.width=6"),
    (mixed_widths, "a.npy: embeddings of width 6, data.width is 8"),
    (some_texts, "a.npy: has no texts, other files of data.path have"),
    (twice, "names a file twice"),
    (empty(".pt"), "is empty"),
    (empty(".npy"), "is empty"),
    (empty(".safetensors"), "is empty"),
    (empty(".txt"), "no words in it"),
    (empty_folder, "tensors.json: No such file"),
    (folder_of_other_files, "tensors.json: No such file"),
    (torn_folder, "y.bin: has 640 bytes, tensors.json says 1280"),
    (missing_texts, "1 texts for 40 rows"),
    (bad_texts, "texts.jsonl:1: no pair"),
    (missing, "which is"),
    (uneven_words, "a.txt:2: no word with 8 numbers"),
    (prose, "a.txt:1: no word with"),
    (binary_words, "a.vec:2: no word with"),
    (words_with_nan, "1 of 2 rows are not finite or have a norm outside 0.01 to 100: 1;"),
]


@pytest.mark.parametrize(("make", "what"), BROKEN, ids=lambda one: getattr(one, "__name__", ""))
def test_a_broken_file_is_one_line(
    make: Callable[[Path], str], what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    line = refused(tmp_path / make(tmp_path), tmp_path, capfd)
    assert what in line
    assert tmp_path.name in line, "says where"
    assert "; " in line.partition(what)[2] or ";" in what, "says what to do"


@pytest.mark.parametrize("name", ["a.pt", "a.npy", "a.safetensors", "a.txt", "set"])
def test_a_file_without_permission_is_one_line(
    name: str, open_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = open_folder / name
    if name == "set":
        write_tensors(path, {"x": with_nan(), "y": X})
    else:
        path.write_text("anything")
    refused(path, open_folder, capfd)  # everything that is imported on the way is now
    (path / "x.bin" if name == "set" else path).chmod(0)
    with nobody():
        line = refused(path, open_folder, capfd)
    assert "Permission denied" in line and name in line


def test_a_folder_that_cannot_be_entered_is_one_line(
    open_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = open_folder / "closed"
    folder.mkdir()
    (folder / "a.pt").touch()
    refused(folder / "a.pt", open_folder, capfd)
    folder.chmod(0)
    with nobody():
        line = refused(folder / "a.pt", open_folder, capfd)
    folder.chmod(0o700)
    assert "closed/a.pt'; give one that is there" in line


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter, which those of pytest are not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@contextmanager
def nobody() -> Iterator[None]:
    """Root may read everything, so it becomes somebody else."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def refused(path: Path, at: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """What ``holdfast train`` says to a file that it must not take."""
    settings = {
        "data.source": "precomputed",
        "data.path": path,
        "data.split": "pair",
        "data.width": 8,
        "data.cache_dir": at / "cache",
        "model.width": 8,
        # A step of it is timed before the file is opened.
        "model.lattice.width": 4,
        "model.lattice.height": 4,
        "model.carrier.hidden": 8,
        "bridge.on": "false",
        "train.steps": 1,
        "train.device": "cpu",
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    capfd.readouterr()
    code = main(["train", "energy_flow", "--quiet", "--run-dir", str(at / "run"), *words])
    out, err = capfd.readouterr()
    assert code == 2 and not out
    (line,) = err.splitlines()
    assert line.startswith("holdfast: error: ")
    assert "weights_only" not in line and "allow_pickle" not in line and "Traceback" not in line
    return line
