"""The model of what many ranks cost: what follows from its parameters, and what it refuses."""

from __future__ import annotations

import pytest
from rank_costs_model import (
    SIZES,
    Machine,
    best_interval,
    checks,
    event_seconds,
    lost_share,
    pause_seconds,
    polling_load,
    reduce_seconds,
    rendezvous_seconds,
    restart_seconds,
    ring_seconds,
    tables,
    write_seconds,
)

MACHINE = Machine()


def test_every_rank_asks_twice_a_second_and_an_event_is_three_requests_each() -> None:
    machine = Machine(store_rate=1000, key_rate=1000, store_trip=0.0, poll=0.5)
    assert polling_load(50, machine) == pytest.approx(0.1)
    assert event_seconds(50, machine) == pytest.approx(0.5 + 150 / 900)


def test_a_tree_needs_one_message_for_each_doubling_up_and_down() -> None:
    hop = MACHINE.hop
    assert [reduce_seconds(n, MACHINE) for n in (1, 2, 8, 9)] == pytest.approx(
        [0, 2 * hop, 6 * hop, 8 * hop]
    )
    assert ring_seconds(8, MACHINE) == pytest.approx(14 * hop)


def test_shares_get_smaller_until_the_storage_is_the_limit() -> None:
    assert pause_seconds(16, MACHINE) == pytest.approx(pause_seconds(8, MACHINE) / 2)
    assert write_seconds(16, MACHINE) == pytest.approx(write_seconds(8, MACHINE) / 2)
    assert write_seconds(4096, MACHINE) == write_seconds(1024, MACHINE)


def test_more_ranks_fail_more_often_and_lose_more() -> None:
    lost = [lost_share(n, MACHINE) for n in SIZES[1:]]
    assert lost == sorted(lost)
    intervals = [best_interval(n, MACHINE) for n in SIZES]
    assert intervals == sorted(intervals, reverse=True)
    assert restart_seconds(8, MACHINE) > MACHINE.start + rendezvous_seconds(8, MACHINE)


def test_addresses_of_all_for_all_grow_with_the_square() -> None:
    machine = Machine(store_rate=1e12, key_rate=1000, connect=0.0)
    assert rendezvous_seconds(20, machine) == pytest.approx(4 * rendezvous_seconds(10, machine))


def test_a_store_that_cannot_answer_is_reported() -> None:
    assert "never: the store is full" in tables(Machine(store_rate=4096))
    assert "never" not in tables(Machine(store_rate=100_000))


def test_what_the_model_misses_is_reported_with_its_sign() -> None:
    reported = checks({1: 100.0, 2: 100.0, 4: 160.0}, {2: 1e-3, 4: 4e-3})
    assert "| store, 2 clients, requests/s | 100 | 160 | +60 % |" in reported
    assert "| gloo all-reduce, 4 ranks | 4.0 ms | 2.0 ms | -50 % |" in reported
