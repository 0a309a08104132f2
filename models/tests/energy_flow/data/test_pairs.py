"""The dataset: settings that fit, parts that are disjoint, batches gathered at once."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from holdfast import HoldfastError
from holdfast.training import collate, write_tensors
from holdfast_models.energy_flow.data import grammar
from holdfast_models.energy_flow.data.dataset_files import TEXTS
from holdfast_models.energy_flow.data.pairs import (
    DataSettings,
    Pairs,
    cache_folder,
    load_pairs,
    load_texts,
)
from holdfast_models.energy_flow.data.tables import Embedded, Tables
from holdfast_models.energy_flow.data.teachers import HashTeacher
from holdfast_models.energy_flow.data.text_pairs import TextPair, write_pairs

X = torch.randn(300, 4, generator=torch.Generator().manual_seed(1))
Y = torch.randn(300, 4, generator=torch.Generator().manual_seed(2))


def small(**values: Any) -> DataSettings:
    return DataSettings(**{"count": 300, "width": 16, **values})


def test_the_grammar_is_embedded_text_by_text_and_split() -> None:
    sets = load_pairs(small())
    assert len(sets.train) + len(sets.validation) + len(sets.test) == 300
    teacher = HashTeacher(16)
    for part in sets[:3]:
        x_E, y_E, index = part[len(part) - 1]
        pair = part.text(index)
        assert torch.equal(torch.stack([x_E, y_E]), teacher.encode([pair.input, pair.target]))
    inputs = [{part.text(n).input for n in range(len(part))} for part in sets[:3]]
    assert len(inputs[0] | inputs[1] | inputs[2]) == 300
    assert sets.teacher is not None and sets.teacher.fingerprint == teacher.fingerprint


def test_a_batch_is_gathered_at_once_and_equals_its_samples() -> None:
    train = load_pairs(small(split="hard")).train
    batches = iter(DataLoader(train, 7, shuffle=True, collate_fn=collate))
    x_BE, y_BE, index_B = next(batches)
    assert x_BE.shape == y_BE.shape == (7, 16) and index_B.shape == (7,)
    for x_E, y_E, index in zip(x_BE, y_BE, index_B, strict=True):
        x2_E, y2_E, index2 = train[int(index)]
        assert torch.equal(x_E, x2_E) and torch.equal(y_E, y2_E) and index == index2
    # A loader that does not know gathered batches gets the same.
    plain = next(iter(DataLoader(train, 7)))
    for ours, theirs in zip(
        next(iter(DataLoader(train, 7, collate_fn=collate))), plain, strict=True
    ):
        assert torch.equal(ours, theirs)


def test_samples_have_their_index_and_an_end() -> None:
    pairs = Pairs(Tables([Embedded(X.half(), Y)]), rows=[5, 2])
    assert len(pairs) == 2 and pairs.width == 4
    x_E, y_E, index = pairs[-1]
    assert index == 1 and x_E.dtype == y_E.dtype == torch.float32
    assert torch.equal(x_E, X[2].half().float()) and torch.equal(y_E, Y[2])
    assert torch.equal(pairs.tensors()[1], Y[[5, 2]])
    with pytest.raises(IndexError):
        pairs[2]
    with pytest.raises(HoldfastError, match="have no texts"):
        pairs.text(0)
    with pytest.raises(HoldfastError, match=r"inputs \[300, 4\], targets \[3, 4\]"):
        Tables([Embedded(X, Y[:3])])
    with pytest.raises(HoldfastError, match="1 texts"):
        Pairs(Tables([Embedded(X, Y)]), texts=[TextPair("a", "b")])


def test_data_stays_on_the_cpu_whatever_the_default_device_is() -> None:
    with torch.device("meta"):
        train = load_pairs(small()).train
        x_BE, y_BE, index_B = collate(train.__getitems__([0, 1]))
        assert train[0][0].device.type == train.tensors()[0].device.type == "cpu"
    assert {x_BE.device.type, y_BE.device.type, index_B.device.type} == {"cpu"}


def test_pairs_travel_to_another_process() -> None:
    train = load_pairs(small()).train
    again = pickle.loads(pickle.dumps(train))
    assert again.text(3) == train.text(3) and torch.equal(again[3][0], train[3][0])


def test_a_file_of_pairs_is_used_whole_and_keeps_its_grammar_split(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    write_pairs(path, grammar.pairs(300, 0))
    from_file = load_pairs(small(source="pairs", path=str(path), count=10, split="hard"))
    made = load_pairs(small(split="hard"))
    for ours, theirs in zip(from_file[:3], made[:3], strict=True):
        assert torch.equal(ours.tensors()[1], theirs.tensors()[1])
    path.write_text("\n")
    with pytest.raises(HoldfastError, match="no pairs in it"):
        load_texts(small(source="pairs", path=str(path)))


def test_too_few_pairs_for_all_parts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    write_pairs(path, [TextPair("a", "b")])
    with pytest.raises(HoldfastError, match="of 1 pairs none fell into"):
        load_pairs(small(source="pairs", path=str(path), split="pair"))


def test_snli_is_drawn_by_seed(tmp_path: Path) -> None:
    path = tmp_path / "snli.jsonl"
    rows = [
        {"premise": f"A premise with number {n}.", "hypothesis": f"Hypothesis {n}.", "label": 0}
        for n in range(80)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))

    def drawn(count: int, seed: int) -> list[str]:
        settings = small(source="snli", path=str(path), split="pair", count=count, seed=seed)
        return [pair.input for pair in load_texts(settings)]

    assert len(set(drawn(60, 0))) == 60
    assert drawn(60, 0)[:20] == drawn(20, 0) != drawn(20, 1)
    assert len(drawn(500, 0)) == 80


def test_precomputed_embeddings_become_unit_unless_told_otherwise(tmp_path: Path) -> None:
    torch.save({"input_embeddings": X, "target_embeddings": Y}, tmp_path / "set.pt")
    wanted = {"source": "precomputed", "path": str(tmp_path / "set.pt"), "split": "pair"}
    unit, raw = (load_pairs(small(**wanted, width=4, normalise=n)) for n in (True, False))
    assert torch.allclose(unit.test.tensors()[0].norm(dim=1), torch.ones(len(unit.test)))
    rows_NE = raw.test.tensors()[0]
    assert bool((rows_NE[:, None] == X).all(2).any(1).all())
    assert torch.allclose(rows_NE / rows_NE.norm(dim=1, keepdim=True), unit.test.tensors()[0])
    assert unit.teacher is None and not unit.train.has_texts
    with pytest.raises(HoldfastError, match=r"width 4, data.width is 16; set data.width=4"):
        load_pairs(small(**wanted))


def test_a_mapped_folder_keeps_texts_and_their_split(tmp_path: Path) -> None:
    made = load_pairs(small(split="hard"))
    texts = load_texts(small())
    teacher = HashTeacher(16)
    x_NE, y_NE = (teacher.encode([getattr(p, n) for p in texts]) for n in ("input", "target"))
    write_tensors(tmp_path / "set", {"x": x_NE, "y": y_NE})
    wanted = small(source="precomputed", path=str(tmp_path / "set"), split="hard")
    with pytest.raises(HoldfastError, match=r"no texts.jsonl in it, which split hard needs"):
        load_pairs(wanted)
    write_pairs(tmp_path / "set" / TEXTS, texts)
    mapped = load_pairs(wanted)
    assert mapped.test.text(0) == made.test.text(0)
    assert torch.equal(mapped.test.tensors()[0], made.test.tensors()[0])


def test_the_cache_is_used_where_one_is_named(tmp_path: Path) -> None:
    first = load_pairs(small(cache_dir=str(tmp_path)))
    (folder,) = tmp_path.iterdir()
    before = (folder / "rows.bin").stat().st_mtime_ns
    again = load_pairs(small(cache_dir=str(tmp_path)))
    assert (folder / "rows.bin").stat().st_mtime_ns == before
    assert torch.equal(first.train.tensors()[0], again.train.tensors()[0])


def test_minilm_is_cached_for_the_user_and_hash_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder(DataSettings()) is None
    folder = cache_folder(DataSettings(teacher="minilm"))
    assert folder is not None and folder.is_relative_to(tmp_path / "holdfast" / "energy_flow")


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"count": 61_441}, "the grammar makes 61440"),
        ({"source": "pairs"}, "reads path, which is None"),
        ({"source": "snli", "path": "no_such_file"}, "reads path, which is 'no_such_file'"),
        ({"source": "snli", "path": __file__}, "set split to pair"),
        ({"source": "precomputed", "path": __file__}, "set split to pair"),
        ({"source": "pairs", "path": __file__, "task": "conditional"}, "made by the grammar"),
    ],
)
def test_settings_that_cannot_be_are_refused(values: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        DataSettings(**values)
