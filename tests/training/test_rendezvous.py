"""Ranks that find each other in a store that remembers former lives."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import DistStoreError, HashStore

from holdfast.training.rendezvous import fresh_store, greeted

PATIENCE = timedelta(seconds=20)


def life(store: HashStore, world: int) -> str:
    with ThreadPoolExecutor(world) as ranks:
        asked = [ranks.submit(greeted, store, rank, world, PATIENCE) for rank in range(world)]
        (name,) = {one.result() for one in asked}
    return name


def test_all_ranks_of_one_life_agree_and_each_life_has_its_own_name() -> None:
    store = HashStore()
    names = [life(store, world) for world in (4, 4, 2, 3)]
    assert len(set(names)) == 4


def test_a_word_that_a_former_life_has_left_is_no_rank() -> None:
    store = HashStore()
    store.set("hello/1", "of the dead")
    with pytest.raises(DistStoreError, match=r"ranks \[1\] of 2 have not come"):
        greeted(store, 0, 2, timedelta(seconds=0.2))


def test_another_launcher_makes_its_own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    assert fresh_store(0, 2, PATIENCE) is None
