"""The dataset: settings that fit, parts that are disjoint, batches gathered at once."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

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
from holdfast_models.energy_flow.data.provenance import data_facts
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


def test_several_files_are_one_set(tmp_path: Path) -> None:
    torch.save({"x": X, "y": Y}, tmp_path / "a.pt")
    np.save(tmp_path / "b.npy", (3 * X + 1).numpy().astype(np.float16))
    write_tensors(tmp_path / "c", {"x": Y, "y": X})
    files = [str(tmp_path / name) for name in ("a.pt", "b.npy", "c")]
    wanted = {"source": "precomputed", "split": "pair", "width": 4, "normalise": False}
    sets = load_pairs(small(**wanted, path=",".join(files)))
    assert sets.sources == ("a.pt: 300 pairs", "b.npy: 300 pairs", "c: 300 pairs")
    both = (3 * X + 1).half().float()
    x_NE, y_NE = torch.cat([X, both, Y]), torch.cat([Y, both, X])
    for number, part in enumerate(sets[:3]):
        rows_N = part._rows_N
        ours = [part.tensors(), next(iter(DataLoader(part, 900, collate_fn=collate)))]
        for x_BE, y_BE, *_ in ours:
            assert torch.equal(x_BE, x_NE[rows_N]) and torch.equal(y_BE, y_NE[rows_N])
        # Each file is split as it would be alone.
        alone = [load_pairs(small(**wanted, path=file))[:3][number] for file in files]
        assert torch.equal(x_NE[rows_N], torch.cat([one.tensors()[0] for one in alone]))
    listed = load_pairs(small(**wanted, path=tuple(files)))
    assert torch.equal(listed.test.tensors()[0], sets.test.tensors()[0])


def test_pairs_of_several_files_note_their_source(tmp_path: Path) -> None:
    made = grammar.pairs(300, 0)
    write_pairs(tmp_path / "a.jsonl", made[:200])
    bare = [{k: v for k, v in pair.meta.items() if k != "source"} for pair in made[200:]]
    write_pairs(
        tmp_path / "b.jsonl",
        (TextPair(p.input, p.target, meta) for p, meta in zip(made[200:], bare, strict=True)),
    )
    path = f"{tmp_path / 'a.jsonl'},{tmp_path / 'b.jsonl'}"
    sets = load_pairs(small(source="pairs", path=path, split="hard"))
    alone = load_pairs(small(split="hard"))
    assert torch.equal(sets.train.tensors()[0], alone.train.tensors()[0])
    found = {part.text(n).meta["source"] for part in sets[:3] for n in range(len(part))}
    assert found == {"grammar", "b.jsonl"}  # those that name none have their file
    facts = data_facts(sets, None)
    assert facts["sources"] == ["a.jsonl", "b.jsonl"]
    assert facts["texts"] == data_facts(alone, None)["texts"]


def test_a_comma_may_be_part_of_a_name(tmp_path: Path) -> None:
    np.save(tmp_path / "a,b.npy", X.numpy())
    settings = small(source="precomputed", split="pair", path=str(tmp_path / "a,b.npy"))
    assert settings.files == (str(tmp_path / "a,b.npy"),)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_read_a_mapped_set_ahead(tmp_path: Path, start: str) -> None:
    write_tensors(tmp_path / "set", {"x": X, "y": Y})
    settings = small(source="precomputed", split="pair", width=4, path=str(tmp_path / "set"))
    train = load_pairs(settings).train
    looked = multiprocessing.get_context(start).Value("i", 0)
    loader = DataLoader(
        Counted(train, looked), 8, num_workers=1, prefetch_factor=3, collate_fn=collate,
        multiprocessing_context=start,
    )  # fmt: skip
    batches = iter(loader)
    x_BE, y_BE, index_B = next(batches)
    assert torch.equal(x_BE, train.__getitems__(index_B.tolist()).batch[0]) and len(y_BE) == 8
    deadline = time.monotonic() + 30
    while looked.value < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    # One was taken, three more are made while nobody asks; each was gathered in one call.
    assert looked.value == 4


class Counted(Dataset[Any]):
    """Counts the batches that a worker gathers."""

    def __init__(self, pairs: Pairs, looked: Any) -> None:
        self._pairs, self._looked = pairs, looked

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("one by one")

    def __getitems__(self, indices: list[int]) -> Any:
        with self._looked.get_lock():
            self._looked.value += 1
        return self._pairs.__getitems__(indices)


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
