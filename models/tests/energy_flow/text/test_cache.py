from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from holdfast import HoldfastError
from holdfast_models.energy_flow.text.cache import (
    Cache,
    TextCache,
    surface_key,
    text_key,
    weights_digest,
)


def test_the_entry_not_used_for_longest_goes_first():
    cache = Cache[str](2)
    cache.put("a", "1")
    cache.put("b", "2")
    assert cache.get("a") == "1"
    cache.put("c", "3")
    assert cache.get("b") is None
    assert [key for key, _ in cache.entries()] == ["a", "c"]
    assert cache.counts == (1, 1, 1)


def test_many_threads_keep_it_bounded():
    cache, missing = Cache[int](50), list[int]()

    def use(first: int) -> None:
        for number in range(first, first + 500):
            cache.put(str(number % 120), number % 120)
            found = cache.get(str(number % 120))
            if found not in (None, number % 120):
                missing.append(number)

    threads = [threading.Thread(target=use, args=(first,)) for first in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cache) == 50 and not missing
    assert cache.counts.hits + cache.counts.misses == 8 * 500


def test_what_is_missing_is_made_once_and_together():
    cache, calls = Cache[str](10), list[list[int]]()

    def make(places: list[int]) -> list[str]:
        calls.append(places)
        return [f"made {place}" for place in places]

    assert cache.answers(["a", "b", "a"], make) == ["made 0", "made 1", "made 0"]
    assert cache.answers(["b", "c"], make) == ["made 1", "made 1"]
    assert cache.answers(["b"], make) == ["made 1"]
    assert calls == [[0, 1], [1]]


def test_more_answers_than_room_are_all_given():
    cache = Cache[int](2)
    assert cache.answers([str(n) for n in range(9)], lambda places: places) == list(range(9))
    assert len(cache) == 2


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_starts_empty(copied):
    cache = TextCache(3, (2, 2, 2))
    cache.texts.put("a", "1")
    other = copied(cache)
    assert other.lattice == (2, 2, 2) and other.texts.size == 3 and len(other.texts) == 0


def test_surfaces_of_the_same_sum_have_different_keys():
    # The predecessor took the sum for the surface.
    first_S, second_S = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.3, 0.2, 0.1])
    assert surface_key("m", first_S) != surface_key("m", second_S)
    assert surface_key("m", first_S) == surface_key("m", first_S + 1e-6)
    assert surface_key("m", first_S) != surface_key("m", first_S + 1e-3)
    assert surface_key("m", torch.tensor([0.0])) == surface_key("m", torch.tensor([-1e-9]))


def test_everything_an_answer_depends_on_is_in_its_key():
    surface_S = torch.ones(3)
    keys = {
        surface_key("m", surface_S, beams=4, length=8),
        surface_key("m", surface_S, beams=3, length=8),
        surface_key("m", surface_S, beams=4, length=9),
        surface_key("n", surface_S, beams=4, length=8),
        text_key("m", "a"),
        text_key("m", "b"),
        text_key("n", "a"),
        text_key("m a", ""),
    }
    assert len(keys) == 8


def test_the_digest_of_weights_sees_every_value():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    first = weights_digest(module)
    assert weights_digest(copy.deepcopy(module)) == first
    for tensor in module.state_dict().values():
        before = tensor.clone()
        tensor.view(-1)[-1] += 1
        assert weights_digest(module) != first
        tensor.copy_(before)
    assert weights_digest(module) == first
    assert weights_digest(module.to(torch.bfloat16)) != first


def test_a_file_brings_everything_back_in_its_order(tmp_path):
    cache = TextCache(5, (2, 3, 4))
    for number in range(4):
        cache.surfaces.put(f"s{number}", torch.full((6,), float(number)))
    cache.texts.put("t", 'a "quoted" text\nin ünicode')
    cache.save(tmp_path / "cache.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["cache.safetensors"]
    other = TextCache(2, (2, 3, 4))
    other.load(tmp_path / "cache.safetensors")
    assert [key for key, _ in other.surfaces.entries()] == ["s2", "s3"]
    found = other.surfaces.get("s3")
    assert found is not None and found.tolist() == [3.0] * 6
    assert other.texts.get("t") == 'a "quoted" text\nin ünicode'


def test_an_empty_cache_can_be_kept_too(tmp_path):
    TextCache(5, (2, 3, 4)).save(tmp_path / "cache.safetensors")
    cache = TextCache(5, (2, 3, 4))
    cache.load(tmp_path / "cache.safetensors")
    assert len(cache.surfaces) == len(cache.texts) == 0


@pytest.mark.parametrize("lattice", [(3, 3, 4), (3, 2, 4), (2, 3, 6)])
def test_a_file_of_another_lattice_is_refused(tmp_path, lattice: tuple[int, int, int]):
    path = tmp_path / "cache.safetensors"
    TextCache(5, (2, 3, 4)).save(path)
    with pytest.raises(HoldfastError, match=r"6 cells \(lattice 2x3x4\)"):
        TextCache(5, lattice).load(path)


def test_files_that_are_none_are_refused_in_one_line(tmp_path):
    cache = TextCache(5, (2, 3, 4))
    with pytest.raises(HoldfastError, match="cannot be read"):
        cache.load(tmp_path / "none")
    (tmp_path / "noise").write_bytes(b"\x00" * 64)
    with pytest.raises(HoldfastError, match="cannot be read"):
        cache.load(tmp_path / "noise")
    save_file({"surfaces": torch.ones(1)}, tmp_path / "other")
    with pytest.raises(HoldfastError, match="is no text cache"):
        cache.load(tmp_path / "other")
    with pytest.raises(HoldfastError, match="cannot be written"):
        cache.save(tmp_path / "no" / "such" / "folder")
