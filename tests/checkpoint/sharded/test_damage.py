"""A changed or missing byte anywhere is found, by the name of its place, and an older one taken."""

from __future__ import annotations

import json

import pytest

from holdfast.checkpoint.file import load
from holdfast.checkpoint.record import verify
from holdfast.checkpoint.search import find
from holdfast.checkpoint.sharded.loading import load_folder
from holdfast.checkpoint.sharded.places import PartPlace
from holdfast.checkpoint.store import CheckpointStore
from holdfast.errors import CheckpointError, DamagedCheckpointError

NAME = "step-0000000005"


@pytest.fixture
def folder(tmp_path, save_all):
    save_all(tmp_path, 3, step=4)
    save_all(tmp_path, 3, step=5)
    return tmp_path / NAME


def places(folder):
    """Every place of every data file, and what it is called."""
    fields = json.loads((folder / "index.json").read_text())
    for name, one in fields["files"].items():
        yield name, 0, "the head"
        yield name, one["head"][0] - 1, "the head"
        for tensor, (*_, begin, end, _) in one["own"].items():
            if end > begin:
                yield name, begin, tensor
    for tensor, chunks in fields["chunks"].items():
        for *_, name, begin, end, _ in chunks:
            yield name, begin, tensor
            yield name, end - 1, tensor


def test_a_changed_byte_is_named_and_the_older_one_is_taken(folder, flip):
    every = list(places(folder))
    assert len(every) > 30
    for name, at, what in every:
        flip(folder / name, at)
        rank = name[1]
        with pytest.raises(DamagedCheckpointError) as error:
            verify(folder)
        reported = f"{what} has changed, in {name}, the data of rank {rank}"
        assert reported in str(error.value)
        flip(folder / name, at)
    verify(folder)


def test_every_byte_is_vouched_for(folder):
    fields = json.loads((folder / "index.json").read_text())
    for name, one in fields["files"].items():
        ranges = [(0, one["head"][0]), *((b, e) for *_, b, e, _ in one["own"].values())]
        ranges += [
            (begin, end) for chunks in fields["chunks"].values()
            for *_, file, begin, end, _ in chunks if file == name
        ]  # fmt: skip
        ranges.sort()
        assert [b for b, _ in ranges[1:]] == [e for _, e in ranges[:-1]]
        assert ranges[-1][1] == one["bytes"] == (folder / name).stat().st_size


def test_what_is_read_is_proven_while_it_is_read(folder, flip, state_of):
    """A load for one rank reads only what it needs, and finds the damage in that."""
    fields = json.loads((folder / "index.json").read_text())
    *_, file, begin, _, _ = fields["chunks"]["models.m.w"][2]
    flip(folder / file, begin)
    _, where = state_of(0, 3)
    load_folder(folder, rank=0, place=lambda n, s: where.get(n) or PartPlace.whole(s))
    with pytest.raises(DamagedCheckpointError, match=r"models\.m\.w has changed, in r2"):
        load(folder)


def test_a_missing_or_cut_file_is_named(folder):
    data = folder / "r1.safetensors"
    content = data.read_bytes()
    data.write_bytes(content[:-1])
    (entry,) = [one for one in CheckpointStore(folder.parent).entries() if one.step == 5]
    assert "r1.safetensors, the data of rank 1, is not whole: it has" in entry.damage
    data.unlink()
    with pytest.raises(
        DamagedCheckpointError, match=r"r1\.safetensors, the data of rank 1, is miss"
    ):
        load(folder)


@pytest.mark.parametrize("what", ["index", "missing index", "data", "missing data"])
def test_every_rank_takes_the_older_one_and_says_so(folder, flip, what):
    path = folder / ("index.json" if "index" in what else "r2.safetensors")
    if "missing" in what:
        path.unlink()
    else:
        flip(path, 200)
    for rank in (0, 1, 2, 5):
        reported: list[str] = []
        found = find(folder.parent, None, None, rank, reported.append)
        assert found == folder.parent / "step-0000000004"
        assert reported[0].startswith(f"checkpoint {NAME} is damaged (")
        assert "looking for an older one" in reported[0]


def test_every_byte_of_the_index_counts(folder, flip):
    index = folder / "index.json"
    size = index.stat().st_size
    for at in range(0, size, 97):
        flip(index, at)
        with pytest.raises(CheckpointError):
            verify(folder)
        flip(index, at)
    verify(folder)
