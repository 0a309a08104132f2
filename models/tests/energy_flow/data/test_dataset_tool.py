"""The dataset tool: it does what it reports, and nothing in a dry run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from holdfast import HoldfastError
from holdfast_models.energy_flow.data.dataset_files import find_sets
from holdfast_models.energy_flow.data.dataset_tool import (
    ARCHIVE,
    archive,
    dedup,
    info,
    list_sets,
    make,
    validate,
)
from holdfast_models.energy_flow.data.pairs import DataSettings, load_pairs
from holdfast_models.energy_flow.data.text_pairs import TextPair, read_pairs, write_pairs

SETTINGS = DataSettings(count=200, width=16)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def aged(path: Path, when: float) -> Path:
    os.utime(path, (when, when))
    return path


def test_a_set_is_made_once_under_a_name_that_tells_everything(tmp_path: Path) -> None:
    (line,), ok = make(tmp_path, SETTINGS, dry_run=True)
    assert ok and "would be written, 200 pairs" in line and not names(tmp_path)
    assert "written, 200 pairs" in make(tmp_path, SETTINGS).lines[0]
    assert "there already" in make(tmp_path, SETTINGS).lines[0]
    make(tmp_path, DataSettings(count=200, seed=1, task="conditional"))
    assert names(tmp_path) == {
        "grammar_rewrite_n200_s0.jsonl",
        "grammar_conditional_n200_s1.jsonl",
    }
    path = str(tmp_path / "grammar_rewrite_n200_s0.jsonl")
    again = DataSettings(source="pairs", path=path, width=16)
    assert load_pairs(again).train.text(0) == load_pairs(SETTINGS).train.text(0)


def test_an_embedded_set_can_be_trained_on_as_precomputed(tmp_path: Path) -> None:
    make(tmp_path, SETTINGS, embedded=True)
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("grammar_rewrite_n200_s0_hash16-")
    ready = load_pairs(DataSettings(source="precomputed", path=str(folder), width=16))
    assert torch.equal(ready.test.tensors()[0], load_pairs(SETTINGS).test.tensors()[0])
    assert validate(folder).ok
    assert "200 pairs of width 16, float32, norms of inputs 1 to 1" in info(folder).lines
    write_pairs(folder / "texts.jsonl", [TextPair("a", "b")])
    report = validate(folder)
    assert not report.ok and "1 texts for 200 rows" in report.lines[-1]


def test_sources_of_other_files_are_named_by_their_content(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    write_pairs(path, [TextPair("a", "b")])
    settings = DataSettings(source="pairs", path=str(path), split="pair", width=16)
    make(tmp_path / "sets", settings)
    write_pairs(path, [TextPair("a", "c")])
    make(tmp_path / "sets", settings)
    assert len(names(tmp_path / "sets")) == 2
    torch.save(torch.ones(2, 2), tmp_path / "rows.pt")
    rows = DataSettings(source="precomputed", path=str(tmp_path / "rows.pt"), split="pair")
    with pytest.raises(HoldfastError, match="has no texts"):
        make(tmp_path, rows)


def test_sets_are_listed_with_kind_and_age(tmp_path: Path) -> None:
    assert "no sets" in list_sets(tmp_path).lines[0]
    make(tmp_path, SETTINGS)
    torch.save(torch.ones(2, 2), tmp_path / "rows.pt")
    (tmp_path / "notes.txt").write_text("no set")
    for path in tmp_path.iterdir():
        aged(path, 1e9)
    first, second = list_sets(tmp_path, now=1e9 + 3 * 86400).lines
    assert first.startswith("grammar_rewrite_n200_s0.jsonl  pairs") and "3 days old" in first
    assert second.startswith("rows.pt") and "embeddings" in second
    with pytest.raises(HoldfastError, match="give a folder of sets"):
        list_sets(tmp_path / "none")


def test_a_set_is_described(tmp_path: Path) -> None:
    make(tmp_path, SETTINGS)
    lines = info(tmp_path / "grammar_rewrite_n200_s0.jsonl").lines
    assert lines[1].startswith("200 pairs, 200 different inputs")
    assert [line.split(":")[0] for line in lines[2:5]] == [
        "split compositional", "split hard", "split pair",
    ]  # fmt: skip
    with pytest.raises(HoldfastError, match=r"nothing.jsonl: no set; give a .jsonl"):
        info(tmp_path / "nothing.jsonl")


def test_validation_names_every_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    write_pairs(path, [TextPair("a", "b"), TextPair("a", "b"), TextPair("c", "d")])
    assert validate(path) == ([f"{path}: 3 pairs, 1 of them repeated", "valid"], True)
    path.write_text(path.read_text() + "{\n" * 12 + '{"input": "a"}\n')
    lines, ok = validate(path)
    assert not ok and lines[0].startswith(f"{path}:4: not JSON")
    assert lines[-3:] == [
        f"{path}: and 3 lines more", f"{path}: 3 pairs, 1 of them repeated", "not valid",
    ]  # fmt: skip
    path.write_text("")
    assert not validate(path).ok


def test_validation_names_bad_embeddings(tmp_path: Path) -> None:
    rows = torch.ones(5, 3)
    rows[2] = float("nan")
    torch.save(rows, tmp_path / "rows.pt")
    (line,), ok = validate(tmp_path / "rows.pt")
    assert not ok and "1 of 5 rows" in line and ": 2; remove" in line
    assert not validate(tmp_path / "none.pt").ok


def test_repeated_pairs_are_removed_and_the_first_stay_in_order(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    pairs = [TextPair("a", "b", {"n": 1}), TextPair("c", "d"), TextPair("a", "b", {"n": 2})]
    write_pairs(path, pairs)
    assert "1 of 3 pairs would be removed" in dedup(path, dry_run=True).lines[0]
    assert read_pairs(path) == pairs
    assert "1 of 3 pairs removed, 2 different" in dedup(path).lines[0]
    assert read_pairs(path) == pairs[:2]
    torch.save(torch.ones(2, 2), tmp_path / "rows.pt")
    with pytest.raises(HoldfastError, match="holds embeddings"):
        dedup(tmp_path / "rows.pt")


def test_of_equal_sets_the_oldest_stays(tmp_path: Path) -> None:
    for name, when in (("a.jsonl", 3e8), ("b.jsonl", 1e8), ("c.jsonl", 2e8)):
        write_pairs(tmp_path / name, [TextPair("a", name if name == "c.jsonl" else "b")])
        aged(tmp_path / name, when)
    assert dedup(tmp_path, dry_run=True).lines == ["a.jsonl: would be removed, the same as b.jsonl"]
    assert len(names(tmp_path)) == 3
    assert dedup(tmp_path).lines == ["a.jsonl: removed, the same as b.jsonl"]
    assert names(tmp_path) == {"b.jsonl", "c.jsonl"}
    assert "no two sets" in dedup(tmp_path).lines[0]


def test_old_sets_are_moved_out_of_the_way_and_never_over_another(tmp_path: Path) -> None:
    for name, when in (("old.jsonl", 1e9), ("new.jsonl", 1e9 + 86400)):
        write_pairs(tmp_path / name, [TextPair("a", "b")])
        aged(tmp_path / name, when)
    now = 1e9 + 1.5 * 86400
    assert "old.jsonl: would be moved" in archive(tmp_path, 1, dry_run=True, now=now).lines[0]
    assert names(tmp_path) == {"old.jsonl", "new.jsonl"}
    assert "old.jsonl: moved" in archive(tmp_path, 1, now=now).lines[0]
    assert [found.path.name for found in find_sets(tmp_path)] == ["new.jsonl"]
    assert "nothing is older than 1 days" in archive(tmp_path, 1, now=now).lines[0]
    write_pairs(tmp_path / "old.jsonl", [TextPair("c", "d")])
    aged(tmp_path / "old.jsonl", 1e9)
    assert "old.jsonl: stays" in archive(tmp_path, 1, now=now).lines[0]
    assert read_pairs(tmp_path / ARCHIVE / "old.jsonl") == [TextPair("a", "b")]
