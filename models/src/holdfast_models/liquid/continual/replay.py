"""Replay: examples of earlier tasks, kept in a fixed amount of memory and mixed into batches.

What is kept and drawn is decided on the host, by a generator of its own, from no value on the
device: nothing waits for the device.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from holdfast import HoldfastError

Batch = Mapping[str, Tensor]
STRATEGIES = ("uniform", "importance", "balanced")
_SAVED = ("rows", "importance", "slots", "seen", "turn")


class Replay:
    """Reservoir of every task's examples; memory is shared evenly between the tasks.

    ``capacity`` examples are kept, of one task ``per_task`` at most. They are drawn uniform (all
    alike), by importance (their loss) or balanced (tasks take turns, also from call to call).
    """

    def __init__(
        self, capacity: int = 1000, strategy: str = "balanced", seed: int = 0, per_task: int = 200
    ) -> None:
        if strategy not in STRATEGIES:
            raise HoldfastError(f"replay-strategy is {strategy!r}; choose one of {STRATEGIES}.")
        self.capacity, self.strategy, self.per_task = capacity, strategy, per_task
        self._random = torch.Generator().manual_seed(seed)
        self.rows: dict[str, Tensor] = {}
        self.importance = torch.zeros(capacity)
        self.slots: dict[int, list[int]] = {}
        self.seen: dict[int, int] = {}
        self.turn = 0

    def quota(self, task: int) -> int:
        """Most examples of a task: an even share, the remainder to the first tasks."""
        share, rest = divmod(self.capacity, len(self.slots))
        return min(self.per_task, share + (list(self.slots).index(task) < rest))

    @torch.no_grad()
    def add(self, batch: Batch, task: int, importance: Tensor | None = None) -> None:
        """Offer the examples of a batch of ``task``; ``importance`` is the loss of each, else 1."""
        if not self.rows:
            for name, value in batch.items():
                self.rows[name] = value.new_zeros((self.capacity, *value.shape[1:]))
        if task not in self.slots:
            self.slots[task], self.seen[task] = [], 0
            for other, slots in self.slots.items():
                self.slots[other] = self._shuffled(slots)[: self.quota(other)]
        device, count = self._follow(batch)
        taken = {slot: row for row in range(count) for slot in self._slot(task)}
        both_2N = torch.tensor([list(taken), list(taken.values())], dtype=torch.long)
        slots_N, rows_N = both_2N.to(device, non_blocking=True)
        for name, kept in self.rows.items():
            kept[slots_N] = batch[name][rows_N]
        importance = torch.ones(count, device=device) if importance is None else importance
        self.update(slots_N, importance[rows_N])

    def update(self, slots_N: Tensor, importance_N: Tensor) -> None:
        """Replace the importance of examples by their latest loss."""
        self.importance[slots_N] = importance_N.detach().float()

    def sample(self, count: int, without: int | None = None) -> tuple[dict[str, Tensor], Tensor]:
        """``count`` examples, none of task ``without``, and their slots; repeats if it must."""
        pools = [self._shuffled(s) for task, s in self.slots.items() if task != without and s]
        if not pools:
            raise HoldfastError("replay has no example of another task yet; add some first.")
        start = self.turn % len(pools)
        self.turn += count
        rounds = zip_longest(*pools[start:], *pools[:start])
        order_N = torch.tensor([slot for turn in rounds for slot in turn if slot is not None])
        order_N = order_N.to(self.importance.device, non_blocking=True)
        if self.strategy != "balanced":  # Gumbel: the largest sums are a weighted draw
            score_N = -(-torch.rand(len(order_N), generator=self._random).log()).log()
            score_N = score_N.to(order_N.device, non_blocking=True)
            if self.strategy == "importance":
                score_N = score_N + self.importance[order_N].clamp(min=1e-12).log()
            order_N = order_N[score_N.argsort(descending=True)]
        order_N = order_N.repeat(-(-count // len(order_N)))[:count]
        return {name: kept[order_N] for name, kept in self.rows.items()}, order_N

    def joined(self, batch: Batch, task: int) -> tuple[dict[str, Tensor], Tensor | None]:
        """The batch with max(1, B // 4) examples of other tasks behind it, and their slots."""
        if not any(slots for other, slots in self.slots.items() if other != task):
            return dict(batch), None
        _, count = self._follow(batch)
        old, slots_N = self.sample(max(1, count // 4), without=task)
        return {name: torch.cat([batch[name], old[name]]) for name in self.rows}, slots_N

    def _follow(self, batch: Batch) -> tuple[torch.device, int]:
        """Be on the device of the batch; that device, and the size of the batch."""
        first = next(iter(batch.values()))
        self.importance = self.importance.to(first.device)
        self.rows = {name: kept.to(first.device) for name, kept in self.rows.items()}
        return first.device, len(first)

    def _slot(self, task: int) -> list[int]:
        """Slot of the next example of a task, by reservoir sampling; none if it is not kept."""
        own = self.slots[task]
        self.seen[task] += 1
        if len(own) < self.quota(task):
            used = {slot for slots in self.slots.values() for slot in slots}
            own.append(next(slot for slot in range(self.capacity) if slot not in used))
            return own[-1:]
        place = int(torch.randint(self.seen[task], (), generator=self._random))
        return own[place : place + 1]

    def _shuffled(self, slots: list[int]) -> list[int]:
        order = torch.randperm(len(slots), generator=self._random)
        return [slots[place] for place in order.tolist()]

    def state_dict(self) -> dict[str, Any]:
        """Examples, importances, where they are, and the RNG state."""
        return {**{name: getattr(self, name) for name in _SAVED}, "rng": self._random.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; another capacity is an error."""
        saved = len(state["importance"])
        if saved != self.capacity:
            raise HoldfastError(
                f"replay-buffer-size is {self.capacity}, the saved one {saved}; resume with that."
            )
        for name, value in copy.deepcopy({name: state[name] for name in _SAVED}).items():
            setattr(self, name, value)
        self._random.set_state(state["rng"].cpu())
