"""Ranks agree on a step over a store: threads stand for ranks, with one store between them."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from torch.distributed import HashStore

from holdfast.recovery import agreement
from holdfast.recovery.agreement import Accepted, Agreement, Facts, Proposal


class Rank:
    """A training that takes steps as fast as it is told, and asks at its boundaries."""

    def __init__(self, store: Any, rank: int, world: int, patience: float = 5.0) -> None:
        self.rank, self.count = rank, 0
        self.done: list[tuple[int, Accepted, list[Facts]]] = []
        self.refuse = ""
        self.mute = False
        self.agreement = Agreement(store, rank, world, self, patience)

    def there(self) -> bool:
        return True

    def step(self) -> int:
        return self.count

    def answer(self, proposal: Proposal) -> Facts:
        if self.mute:
            time.sleep(3600)
        return {"from": self.rank}

    def decide(self, proposal: Proposal, answers: Sequence[Facts]) -> tuple[str, Facts]:
        return self.refuse, {"to": 7, "from": [one["from"] for one in answers]}

    def train(self, steps: int, each: Callable[[int], None] = lambda step: None) -> None:
        for _ in range(steps):
            self.count += 1
            time.sleep(0.002)
            if self.count >= self.agreement.hold_at:
                met = self.agreement.arrive(self.count, {"again": self.rank})
                if met is not None:
                    self.done.append((self.count, *met))
            each(self.count)


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_LOOK", 0.03)


@pytest.fixture
def ranks() -> Iterator[Callable[..., list[Rank]]]:
    made: list[Rank] = []

    def make(world: int = 3, **how: Any) -> list[Rank]:
        store = HashStore()
        made.extend(Rank(store, rank, world, **how) for rank in range(world))
        return made

    yield make
    for one in made:
        one.agreement.close()


def all_train(ranks: Sequence[Rank], steps: int, each: Callable[[int], None] | None = None) -> None:
    extra = [each or (lambda step: None)] + [lambda step: None] * (len(ranks) - 1)
    threads = [
        threading.Thread(target=one.train, args=(steps, do), daemon=True)
        for one, do in zip(ranks, extra, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()


def test_all_ranks_do_it_after_the_same_step_and_know_what_each_brings(ranks):
    three = ranks(3)
    three[1].agreement.ask("rollback", {"why": "loss"})
    all_train(three, 300)
    for one in three:
        ((step, agreed, every),) = one.done
        assert step == agreed.step == three[0].done[0][0]
        assert agreed.proposal.kind == "rollback" and agreed.proposal.rank == 1
        assert agreed.facts == {"to": 7, "from": [0, 1, 2]}
        assert [fact["again"] for fact in every] == [0, 1, 2]
        assert one.agreement.hold_at == math.inf and not one.agreement.news


def test_two_questions_at_once_come_one_after_the_other_everywhere(ranks):
    three = ranks(3)
    three[0].agreement.ask("checkpoint", {})
    three[2].agreement.ask("stop", {"code": "NUM001"})
    all_train(three, 600)
    kinds = [[agreed.proposal.kind for _, agreed, _ in one.done] for one in three]
    assert kinds[0] == kinds[1] == kinds[2] and sorted(kinds[0]) == ["checkpoint", "stop"]
    steps = [[step for step, _, _ in one.done] for one in three]
    assert steps[0] == steps[1] == steps[2] and steps[0][0] < steps[0][1]


def test_the_same_question_of_every_rank_is_asked_once(ranks):
    three = ranks(3)
    for one in three:
        one.agreement.ask("rollback", {})
    all_train(three, 500)
    assert [len(one.done) for one in three] == [1, 1, 1]


def test_what_the_first_rank_refuses_nobody_does(ranks):
    three = ranks(3)
    three[0].refuse = "each trains by itself"
    three[2].agreement.ask("rollback", {})
    all_train(three, 300)
    for one in three:
        assert not one.done and one.agreement.hold_at == math.inf
        (refused,) = one.agreement.news
        assert refused.why == "each trains by itself" and not refused.silent
    # It can be asked for again.
    three[0].refuse = ""
    three[2].agreement.ask("rollback", {})
    all_train(three, 300)
    assert [len(one.done) for one in three] == [1, 1, 1]


def test_a_rank_that_does_not_answer_is_named_and_nobody_waits_for_long(ranks):
    three = ranks(3, patience=0.5)
    three[2].mute = True
    three[1].agreement.ask("rollback", {})
    began = time.monotonic()
    all_train(three[:2], 300)
    assert time.monotonic() - began < 10
    for one in three[:2]:
        assert not one.done
        assert [(n.why, n.silent) for n in one.agreement.news] == [("no answer of rank 2", True)]
        # Nothing is asked any more: the others would wait each time.
        one.agreement.ask("rollback", {})
        one.train(20)
        assert not one.done and not one.agreement.busy


def test_a_rank_that_never_comes_to_the_step_makes_all_others_go_on(ranks):
    three = ranks(3, patience=0.5)
    three[0].agreement.ask("checkpoint", {})
    all_train(three[:2], 300)  # the third answers and takes no step
    assert not any(one.done for one in three)
    for one in three[:2]:
        assert [n.silent for n in one.agreement.news] == [True]


def test_ranks_that_stand_at_different_steps_do_nothing(ranks):
    two = ranks(2)

    def skips_one(step: int) -> None:
        two[0].count += step == two[0].agreement.hold_at - 1

    two[1].agreement.ask("rollback", {})
    all_train(two, 300, skips_one)
    assert not any(one.done for one in two)
    assert all("same steps" in one.agreement.news[0].why for one in two)


def test_what_is_not_blocks_training_is_named_for_later_and_stops_nobody(ranks):
    two = ranks(2)
    all_train(two, 60)
    waited: list[float] = []

    def timed(step: int) -> None:
        waited.append(time.monotonic())

    asked = two[0].count
    two[0].agreement.ask("pace", {}, blocks_training=False)
    all_train(two, 600, timed)
    ((step, _, _),) = two[0].done
    assert step > asked + 10
    assert max(b - a for a, b in itertools.pairwise(waited)) < 1.0


def test_a_store_that_is_gone_ends_agreements_and_not_the_training(ranks):
    class Broken:
        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("Connection reset by peer")

        set = get = compare_set = check

    one = Rank(Broken(), 0, 2)
    time.sleep(0.2)
    one.agreement.ask("rollback", {})
    one.train(10)
    assert not one.done and "Connection reset" in one.agreement.news[0].why
    one.agreement.close()


def test_nobody_waits_for_a_rank_that_has_ended(ranks):
    three = ranks(3)
    all_train(three, 20)
    three[2].agreement.close()
    began = time.monotonic()
    three[0].agreement.ask("rollback", {})
    all_train(three[:2], 200)
    assert time.monotonic() - began < 3 and not any(one.done for one in three)
    assert all(one.agreement.over for one in three)


def test_the_first_rank_ends_when_the_others_have_left_its_store(ranks):
    three = ranks(3)
    all_train(three, 20)
    three[0].agreement.close()
    assert all(one.agreement.over for one in three)


def test_an_exchange_gives_every_rank_the_same_list(ranks):
    three = ranks(3)
    reported: dict[int, Any] = {}

    def bring(one: Rank) -> None:
        reported[one.rank] = one.agreement.exchange("trial/0", {"tried": one.rank / 2})

    threads = [threading.Thread(target=bring, args=(one,)) for one in three]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (
        reported[0]
        == reported[1]
        == reported[2]
        == [{"tried": 0.0}, {"tried": 0.5}, {"tried": 1.0}]
    )


def test_an_exchange_without_one_rank_is_none_for_all(ranks):
    three = ranks(3, patience=0.3)
    reported: list[Any] = []
    threads = [
        threading.Thread(
            target=lambda one=one: reported.append(one.agreement.exchange("trial/0", {}))
        )
        for one in three[:2]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reported == [None, None]
