"""The embedding cache: nothing is computed twice, and nothing torn is ever read."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from holdfast import HoldfastError
from holdfast_models.energy_flow.data import embeddings
from holdfast_models.energy_flow.data.embeddings import EmbeddingCache, embed
from holdfast_models.energy_flow.data.teachers import HashTeacher

TEXTS = ["one", "two", "three", "two"]


class Counting(HashTeacher):
    """Remembers what it was asked."""

    def __init__(self, dim: int = 8, seed: int = 0) -> None:
        super().__init__(dim, seed)
        self.asked: list[str] = []

    def encode(self, texts: Sequence[str]) -> Tensor:
        self.asked += texts
        return super().encode(texts)


def expected(texts: Sequence[str]) -> Tensor:
    return HashTeacher(8).encode(texts)


@pytest.mark.parametrize("kept", [True, False])
def test_each_text_is_computed_once_and_comes_back_in_order(tmp_path: Path, kept: bool) -> None:
    teacher = Counting()
    found_NE = embed(teacher, TEXTS, tmp_path if kept else None)
    assert torch.equal(found_NE, expected(TEXTS))
    assert teacher.asked == ["one", "two", "three"]
    assert embed(teacher, [], tmp_path if kept else None).shape == (0, 8)


def test_another_process_computes_only_what_is_new(tmp_path: Path) -> None:
    EmbeddingCache(tmp_path, Counting()).encode(TEXTS)
    teacher = Counting()
    cache = EmbeddingCache(tmp_path, teacher)
    assert len(cache) == 3
    assert torch.equal(cache.encode(["three", "four", "one"]), expected(["three", "four", "one"]))
    assert teacher.asked == ["four"] and cache.computed == 1 and len(cache) == 4


def test_what_comes_back_is_the_callers_own(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path, Counting())
    cache.encode(TEXTS).zero_()
    assert torch.equal(cache.encode(TEXTS), expected(TEXTS))


def test_two_that_want_the_same_texts_at_once_compute_them_once(tmp_path: Path) -> None:
    texts = [f"text {n}" for n in range(300)]
    teachers = [Counting() for _ in range(4)]
    caches = [EmbeddingCache(tmp_path, teacher) for teacher in teachers]
    found: list[Tensor] = []
    threads = [
        threading.Thread(target=lambda cache=cache: found.append(cache.encode(texts)))
        for cache in caches
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(len(teacher.asked) for teacher in teachers) == 300
    assert len(found) == 4 and all(torch.equal(rows, expected(texts)) for rows in found)


def test_teachers_do_not_share_rows(tmp_path: Path) -> None:
    first = embed(Counting(seed=0), TEXTS, tmp_path)
    second = embed(Counting(seed=1), TEXTS, tmp_path)
    assert not torch.equal(first, second)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(("name", "left"), [("rows.bin", 32 + 7), ("texts.bin", 16 + 5)])
def test_a_torn_file_costs_its_end_only(tmp_path: Path, name: str, left: int) -> None:
    cache = EmbeddingCache(tmp_path, Counting())
    cache.encode(TEXTS)
    with (cache.folder / name).open("r+b") as file:
        file.truncate(left)  # one whole entry and a part of the next
    teacher = Counting()
    again = EmbeddingCache(tmp_path, teacher)
    assert torch.equal(again.encode(TEXTS), expected(TEXTS))
    assert teacher.asked == ["two", "three"]
    assert torch.equal(EmbeddingCache(tmp_path, Counting()).encode(TEXTS), expected(TEXTS))


def test_a_digest_of_an_older_time_never_meets_a_new_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = EmbeddingCache(tmp_path, Counting())
    cache.encode(TEXTS)
    with (cache.folder / "rows.bin").open("r+b") as file:
        file.truncate(32)  # the digests of two lost rows are still there
    append = EmbeddingCache._append

    def killed(self: EmbeddingCache, name: str, raw: bytes) -> None:
        if name == "texts.bin":
            raise KeyboardInterrupt
        append(self, name, raw)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(EmbeddingCache, "_append", killed)
        embed(Counting(), ["four", "five"], tmp_path)
    texts = [*TEXTS, "four", "five"]
    assert torch.equal(embed(Counting(), texts, tmp_path), expected(texts))


def test_an_interruption_keeps_what_was_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings, "_CHUNK", 2)

    class Interrupted(Counting):
        def encode(self, texts: Sequence[str]) -> Tensor:
            if len(self.asked) >= 4:
                raise KeyboardInterrupt
            return super().encode(texts)

    texts = [f"text {n}" for n in range(7)]
    with pytest.raises(KeyboardInterrupt):
        embed(Interrupted(), texts, tmp_path)
    teacher = Counting()
    assert torch.equal(embed(teacher, texts, tmp_path), expected(texts))
    assert teacher.asked == texts[4:]


def test_a_folder_of_another_teacher_or_damaged_is_refused(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path, Counting())
    cache.encode(TEXTS)
    raw = (cache.folder / "texts.bin").read_bytes()
    (cache.folder / "texts.bin").write_bytes(raw[:16] * 3)
    with pytest.raises(HoldfastError, match="3 rows for 1 texts, so it is damaged; remove"):
        EmbeddingCache(tmp_path, Counting())
    (cache.folder / "teacher.json").write_text('{"dim": 9}')
    with pytest.raises(HoldfastError, match="of another teacher than hash8 of width 8"):
        EmbeddingCache(tmp_path, Counting())


def test_a_teacher_that_makes_nonsense_is_caught_before_it_is_kept(tmp_path: Path) -> None:
    class Broken(Counting):
        def encode(self, texts: Sequence[str]) -> Tensor:
            return super().encode(texts) / 0

    with pytest.raises(HoldfastError, match="teacher hash8: made"):
        embed(Broken(), TEXTS, tmp_path)
    assert len(EmbeddingCache(tmp_path, Counting())) == 0
