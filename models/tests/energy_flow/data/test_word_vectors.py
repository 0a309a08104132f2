"""Word vectors as text: parsed once in bounded memory, kept by content, used as both sides."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.energy_flow.data.dataset_tool import dedup, info, list_sets, validate
from holdfast_models.energy_flow.data.pairs import DataSettings, load_pairs
from holdfast_models.energy_flow.data.precomputed import read_precomputed

WORDS = ["the", ",", ". . .", "größe", "0.5", "at name@domain.com"]
ROWS = torch.tensor([[0.5 * n + 1, -1.25, 3e-2] for n in range(len(WORDS))])


def write_words(path: Path, header: str = "", end: str = "\n") -> Path:
    lines = [
        f"{word} {' '.join(map(str, row))}{end}"
        for word, row in zip(WORDS, ROWS.tolist(), strict=True)
    ]
    path.write_text(header + "".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "header", "end"),
    [("glove.txt", "", "\n"), ("word2vec.vec", "6 3\n", " \n"), ("windows.txt", "", "\r\n")],
)
def test_words_are_texts_and_one_table_is_both(
    tmp_path: Path, name: str, header: str, end: str
) -> None:
    found = read_precomputed(write_words(tmp_path / name, header, end), tmp_path / "cache")
    assert torch.equal(found.x_NE, ROWS) and found.y_NE is found.x_NE
    assert [(pair.input, pair.target) for pair in found.texts()] == [(w, w) for w in WORDS]


def test_a_file_is_parsed_once_and_again_when_its_content_is_another(tmp_path: Path) -> None:
    path, cache = write_words(tmp_path / "glove.txt"), tmp_path / "cache"
    read_precomputed(path, cache)
    (folder,) = cache.iterdir()
    before = (folder / "x.bin").stat().st_mtime_ns
    os.utime(path, (1, 1))
    read_precomputed(path, cache)
    assert (folder / "x.bin").stat().st_mtime_ns == before
    path.write_text(path.read_text() + "more 1 2 3\n")
    assert len(read_precomputed(path, cache).x_NE) == len(WORDS) + 1
    assert len(list(cache.iterdir())) == 2


def test_nothing_is_left_of_a_file_that_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("the 1 2 3\n" * 5000 + "of 1 2\n")
    with pytest.raises(HoldfastError, match=r"glove.txt:5001: no word with 3 numbers"):
        read_precomputed(path, tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_parsing_takes_a_fraction_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    row = " ".join(["0.123456"] * 50)
    with path.open("w") as file:
        file.writelines(f"word{n} {row}\n" for n in range(10_000))
    tracemalloc.start()
    found = read_precomputed(path, tmp_path / "cache")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.x_NE.shape == (10_000, 50)
    assert peak < path.stat().st_size / 3


def test_a_run_can_be_trained_on_words(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("".join(f"word{n} {n % 90 + 1} 2 {n % 7}\n" for n in range(300)))
    settings = DataSettings(
        source="precomputed", path=str(path), split="pair", width=3, cache_dir=str(tmp_path / "c")
    )
    sets = load_pairs(settings)
    x_E, y_E, index = sets.test[0]
    number = int(sets.test.text(index).input.removeprefix("word"))
    wanted_E = torch.tensor([number % 90 + 1.0, 2.0, number % 7])
    assert torch.allclose(x_E, wanted_E / wanted_E.norm()) and torch.equal(x_E, y_E)
    assert sets.sources == ("glove.txt: 300 pairs",)


def test_tools_know_words_but_leave_text_files_of_a_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "sets").mkdir()
    path = write_words(tmp_path / "sets" / "glove.txt")
    assert validate(path).ok and "6 pairs of width 3, float32" in info(path).lines[1]
    write_words(tmp_path / "sets" / "copy.txt")
    dedup(tmp_path / "sets")
    assert path.exists() and "no sets" in list_sets(tmp_path / "sets").lines[0]
