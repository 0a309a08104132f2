"""Saved by some ranks, loaded by others: the same values, bit for bit."""

from __future__ import annotations

import json

import pytest
import torch

from holdfast.checkpoint import rng
from holdfast.checkpoint.file import load
from holdfast.checkpoint.sharded.loading import load_folder
from holdfast.checkpoint.sharded.places import PartPlace
from holdfast.checkpoint.tree import flatten, paths

NAME = "step-0000000005"


def by_name(tree):
    skeleton, tensors = flatten(tree)
    return dict(zip(paths(skeleton), tensors, strict=True))


def same(one, other):
    return (one.dtype, one.shape) == (other.dtype, other.shape) and torch.equal(one, other)


@pytest.mark.parametrize("saved", [1, 2, 4, 9])
@pytest.mark.parametrize("loaded", [1, 2, 3, 4])
def test_every_rank_gets_its_parts_whatever_the_number_of_ranks(
    tmp_path, save_all, state_of, saved, loaded
):
    save_all(tmp_path, saved)
    for rank in range(loaded):
        tree, places = state_of(rank, loaded)

        def place(name, shape, places=places):
            return places.get(name) or PartPlace.whole(shape)

        got, fields = load_folder(tmp_path / NAME, rank=rank, place=place)
        found, wanted = by_name(got), by_name(tree)
        assert found.keys() >= wanted.keys() - {"dice.torch"}
        for name in places:
            assert same(found[name], wanted[name]), (name, rank)
        assert fields["world"] == saved and fields["step"] == 5
        assert got["optimizers"][0]["groups"] == [{"lr": 0.1, "betas": (0.9, 0.999)}]
        assert got["position"] == {"epoch": 2, "batches": 5}
        assert same(found["models.m.none"], torch.empty(0, 3))


def test_a_rank_that_was_there_before_gets_everything_back(tmp_path, save_all, state_of):
    save_all(tmp_path, 3)
    for rank in range(3):
        tree, places = state_of(rank, 3)
        got, _ = load_folder(tmp_path / NAME, rank=rank, place=lambda name, shape, p=places: (
            p.get(name) or PartPlace.whole(shape)))  # fmt: skip
        found, wanted = by_name(got), by_name(tree)
        assert all(same(found[name], wanted[name]) for name in wanted)  # its own buffers, too
        assert got["dice"]["python"] == (3, (rank, 7), None)


def test_a_new_rank_keeps_its_own_random_numbers(tmp_path, save_all):
    save_all(tmp_path, 1)
    before = rng.state()
    got, fields = load_folder(tmp_path / NAME, rank=1)
    assert fields["rank"] == 0  # whose loader position it is
    assert rng.same(got["dice"], before)
    assert got["models"]["m"]["mean"].tolist() == [0.0, 1.0]  # that of the only rank


def test_load_gives_the_whole(tmp_path, save_all, tensors_of):
    save_all(tmp_path, 4)
    tree, fields = load(tmp_path / NAME)
    found = by_name(tree)
    assert all(same(found[name], tensor) for name, tensor in tensors_of().items())
    assert fields["tensors"]["models.m.w"] == ["float32", [7, 4]]
    assert same(by_name(load(tmp_path / NAME / "index.json")[0])["models.m.w"], found["models.m.w"])


def test_replicated_tensors_are_written_once_and_shared_out(tmp_path, save_all):
    """Parameters and optimizer state as DDP has them: no place is given, all ranks have all."""

    def many(rank, tree):
        weights = {f"w{i}": torch.full((8,), float(i)) for i in range(40)}
        tree["models"]["plain"] = weights
        tree["optimizers"].append(
            {"parameters": [[f"plain.{n}", "float32", (8,)] for n in weights]}
        )

    save_all(tmp_path, 4, change=many)
    fields = json.loads((tmp_path / NAME / "index.json").read_text())
    chunks = {n: c for n, c in fields["chunks"].items() if n.startswith("models.plain.")}
    assert len(chunks) == 40 and all(len(one) == 1 for one in chunks.values())
    assert {one[0][2] for one in chunks.values()} == {f"r{rank}.safetensors" for rank in range(4)}
    assert not any("plain" in name for one in fields["files"].values() for name in one["own"])
    tree, _ = load_folder(tmp_path / NAME, rank=2)
    assert tree["models"]["plain"]["w7"].tolist() == [7.0] * 8


def test_replicas_of_a_shard_are_written_once(tmp_path):
    """HSDP: two groups of two ranks; each part is on two of them."""
    from threading import Thread

    from torch import distributed

    from holdfast.checkpoint.sharded.saving import save

    store = distributed.HashStore()
    values = torch.arange(8.0)

    def rank_saves(rank):
        at = rank % 2 * 4
        names = [f"models.m.w{i}" for i in range(10)]
        places = {
            name: PartPlace((8,), (at,), (4,), replica=rank // 2, replicas=2) for name in names
        }
        tree = {"models": {"m": {f"w{i}": values[at : at + 4] + i for i in range(10)}}}
        save(tree, 5, rank=rank, world=4, store=store, folder=tmp_path, places=places)

    threads = [Thread(target=rank_saves, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tree, fields = load(tmp_path / NAME)
    assert all(same(tree["models"]["m"][f"w{i}"], values + i) for i in range(10))
    assert all(len(chunks) == 2 for chunks in fields["chunks"].values())
    files = {chunk[2] for chunks in fields["chunks"].values() for chunk in chunks}
    assert files == {f"r{rank}.safetensors" for rank in range(4)}  # all of them have work
