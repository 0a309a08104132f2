"""Replay: shares of the memory, reservoir, what is drawn, and resuming."""

import io
from collections import Counter

import pytest
import torch
from torch import Tensor

from holdfast import HoldfastError
from holdfast_models.liquid.continual.replay import Replay


def make_batch(task: int, first: int, count: int = 8) -> dict[str, Tensor]:
    """Examples that say where they come from."""
    number = torch.arange(first, first + count)
    return {"tokens": number.unsqueeze(1).repeat(1, 3), "task": torch.full((count,), task)}


def filled(replay: Replay, tasks: int, examples: int = 64) -> Replay:
    for task in range(tasks):
        for first in range(0, examples, 8):
            replay.add(make_batch(task, first), task)
    return replay


def kept(replay: Replay) -> dict[int, list[int]]:
    rows = replay.state_dict()["rows"]
    for task, slots in replay.slots.items():
        assert rows["task"][slots].eq(task).all(), "a slot belongs to one task"
    return {task: rows["tokens"][slots, 0].tolist() for task, slots in replay.slots.items()}


def test_memory_is_shared_evenly_and_shrinks_as_tasks_come() -> None:
    replay = Replay(capacity=50, per_task=30)
    for tasks, expected in ((1, [30]), (2, [25, 25]), (3, [17, 17, 16]), (4, [13, 13, 12, 12])):
        filled_tasks = tasks - 1
        for first in range(0, 64, 8):
            replay.add(make_batch(filled_tasks, first), filled_tasks)
        assert [len(slots) for slots in replay.slots.values()] == expected
        every = [slot for slots in replay.slots.values() for slot in slots]
        assert len(set(every)) == len(every) <= 50
        kept(replay)


def test_by_default_200_examples_of_a_task_are_kept() -> None:
    replay = filled(Replay(), 2, examples=240)
    assert [len(slots) for slots in replay.slots.values()] == [200, 200]


def test_inside_a_task_every_example_is_kept_alike() -> None:
    counts = Counter[int]()
    for seed in range(150):
        replay = Replay(capacity=10, seed=seed)
        for first in range(0, 40, 8):
            replay.add(make_batch(0, first), 0)
        counts.update(kept(replay)[0])
    share = torch.tensor([counts[number] / 150 for number in range(40)])
    assert share.sum().item() == pytest.approx(10)
    assert (share - 0.25).abs().max() < 0.13
    assert share[:20].mean().item() == pytest.approx(0.25, abs=0.04)


@pytest.mark.parametrize("strategy", ["uniform", "importance", "balanced"])
@pytest.mark.parametrize("count", [1, 3, 40])
def test_a_draw_has_the_size_asked_for(strategy, count: int) -> None:
    replay = filled(Replay(capacity=12, strategy=strategy), 3)
    batch, slots = replay.sample(count)
    assert batch["tokens"].shape == (count, 3) and slots.shape == (count,)
    assert len(set(slots.tolist())) == min(count, 12)


def test_balanced_draws_serve_every_task_even_with_more_tasks_than_rows() -> None:
    replay = filled(Replay(capacity=70), 7)
    drawn = [replay.sample(3)[0]["task"].tolist() for _ in range(7)]
    assert all(len(tasks) == 3 for tasks in drawn)
    assert Counter(task for tasks in drawn for task in tasks) == {task: 3 for task in range(7)}
    batch, _ = replay.sample(14)
    assert Counter(batch["task"].tolist()) == {task: 2 for task in range(7)}


def test_a_uniform_draw_follows_what_is_kept() -> None:
    replay = Replay(capacity=100, strategy="uniform")
    replay.add(make_batch(0, 0, 30), 0)
    replay.add(make_batch(1, 0, 10), 1)
    drawn = Counter[int]()
    for _ in range(100):
        drawn.update(replay.sample(4)[0]["task"].tolist())
    assert drawn[0] / 400 == pytest.approx(0.75, abs=0.08)


def test_important_examples_come_more_often_and_importance_can_change() -> None:
    replay = Replay(capacity=8, strategy="importance")
    loss = torch.ones(8)
    loss[5] = 9.0
    replay.add(make_batch(0, 0), 0, loss)

    def share(number: int) -> float:
        return sum(replay.sample(1)[0]["tokens"][0, 0].item() == number for _ in range(400)) / 400

    assert share(5) == pytest.approx(9 / 16, abs=0.08)
    slots = torch.tensor(replay.slots[0])
    replay.update(slots, torch.ones(8))
    assert share(5) == pytest.approx(1 / 8, abs=0.06)


def test_a_joined_batch_has_a_quarter_of_other_tasks_behind_it() -> None:
    """One batch for one forward pass and one step."""
    replay = Replay(capacity=20)
    now = make_batch(0, 100, 8)
    same, slots = replay.joined(now, 0)
    assert slots is None and torch.equal(same["tokens"], now["tokens"])
    filled(replay, 2)
    batch, slots = replay.joined(make_batch(1, 100, 8), 1)
    assert slots is not None and len(slots) == 2 and batch["tokens"].shape == (10, 3)
    assert batch["task"].tolist() == [1] * 8 + [0] * 2
    assert replay.joined(make_batch(1, 100, 2), 1)[0]["task"].tolist() == [1, 1, 0]


@pytest.mark.parametrize("strategy", ["uniform", "importance", "balanced"])
def test_its_state_round_trips_bit_for_bit(strategy) -> None:
    replay, again = (Replay(capacity=30, strategy=strategy, seed=7) for _ in range(2))
    filled(replay, 3)
    replay.sample(4)
    file = io.BytesIO()
    torch.save(replay.state_dict(), file)
    file.seek(0)
    again.load_state_dict(torch.load(file, weights_only=True))
    for task in (2, 3):
        for each in (replay, again):
            each.add(make_batch(task, 500), task)
        (left, left_slots), (right, right_slots) = replay.sample(9), again.sample(9)
        assert torch.equal(left_slots, right_slots)
        assert all(torch.equal(left[name], right[name]) for name in left)
        assert kept(replay) == kept(again)


def test_impossible_wishes_are_one_line() -> None:
    with pytest.raises(HoldfastError, match="newest"):
        Replay(strategy="newest")
    with pytest.raises(HoldfastError, match="no example"):
        Replay().sample(1)
    with pytest.raises(HoldfastError, match="replay-buffer-size is 9, the saved one 10"):
        Replay(9).load_state_dict(filled(Replay(10), 1).state_dict())
