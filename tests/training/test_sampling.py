"""Every rank gets its share of the same global batches, in an order the seed alone decides."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import SettingsError
from holdfast.training.data.sampling import EpochBatches
from holdfast.training.device import Place
from holdfast.training.seeding import generator


def ranks(length: int, batch: int, world: int, epoch: int = 0, **given: Any) -> list[EpochBatches]:
    made = []
    for rank in range(world):
        place = Place(torch.device("cpu"), rank, world, rank)
        options: Any = {"shuffle": True, **given}
        made.append(EpochBatches(length, batch, place, seed=3, **options))
        made[-1].set_epoch(epoch)
    return made


sizes = {
    "length": st.integers(0, 60),
    "share": st.integers(1, 5),
    "world": st.integers(1, 5),
    "shuffle": st.booleans(),
    "drop_last": st.booleans(),
    "chunk": st.none() | st.integers(1, 30),
}


@given(**sizes)
def test_ranks_together_see_the_global_batches_of_one_process(
    length: int, share: int, world: int, shuffle: bool, drop_last: bool, chunk: int | None
) -> None:
    batch = share * world
    options: Any = {"shuffle": shuffle, "drop_last": drop_last, "chunk": chunk}
    (alone,) = ranks(length, batch, 1, epoch=2, **options)
    single = list(alone)
    together = [list(one) for one in ranks(length, batch, world, epoch=2, **options)]
    assert len({len(one) for one in together}) == 1
    # Only a tail with fewer samples than ranks may be missing.
    left = single[len(together[0]) :]
    assert all(len(tail) < world for tail in left) and len(left) <= 1
    for k, whole in enumerate(single[: len(together[0])]):
        assert [one[k] for one in together] == [whole[r::world] for r in range(world)]
        assert all(one[k] for one in together)


@given(**sizes)
def test_the_length_is_the_number_of_batches(
    length: int, share: int, world: int, shuffle: bool, drop_last: bool, chunk: int | None
) -> None:
    for every in (False, True):
        for one in ranks(
            length,
            share * world,
            world,
            shuffle=shuffle,
            drop_last=drop_last,
            every=every,
            chunk=chunk,
        ):
            assert len(one) == len(list(one))


@given(**sizes)
def test_a_validation_sees_every_sample_exactly_once(
    length: int, share: int, world: int, shuffle: bool, drop_last: bool, chunk: int | None
) -> None:
    given: Any = {"shuffle": shuffle, "drop_last": drop_last, "chunk": chunk}
    every = ranks(length, share * world, world, every=True, **given)
    batches = [batch for one in every for batch in one]
    assert sorted(chain.from_iterable(batches)) == list(range(length))
    assert all(batches)


def test_each_epoch_has_another_order_and_the_same_one_again() -> None:
    (one,) = ranks(50, 10, 1)
    first = list(one)
    one.set_epoch(1)
    second = list(one)
    one.set_epoch(0)
    assert first != second and list(one) == first
    assert sorted(chain.from_iterable(second)) == list(range(50))
    assert all(type(index) is int for index in first[0])


def test_an_epoch_under_way_keeps_its_order() -> None:
    (one,) = ranks(50, 10, 1)
    expected = list(one)
    under_way = iter(one)
    one.set_epoch(4)
    assert list(under_way) == expected


def test_a_batch_that_ranks_cannot_share_is_refused_with_one_they_can() -> None:
    with pytest.raises(SettingsError, match=r"data.batch is 10.*3 ranks.*set data.batch=9"):
        ranks(20, 10, 3)


def test_the_default_device_does_not_reach_the_order() -> None:
    (one,) = ranks(50, 10, 1)
    expected = list(one)
    torch.set_default_device("meta")
    try:
        assert list(one) == expected
        assert generator(1, 2).device.type == "cpu"
    finally:
        torch.set_default_device(None)


def test_other_salts_are_other_streams() -> None:
    drawn = {
        torch.rand(1, generator=generator(*salt)).item()
        for salt in ((0,), (0, 1), (1, 0), (0, 1, 0), (1,))
    }
    assert len(drawn) == 5
