"""Scores of continual learning: what is known of every task after every task; higher is better."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class TaskScores(nn.Module):
    """Matrix R[i][j], the score on task j after training on task i, and what follows from it.

    A module without parameters: it is saved as others are.
    """

    after: Tensor
    untrained: Tensor

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = list(names)
        self.register_buffer("after", torch.full((len(names), len(names)), math.nan))
        self.register_buffer("untrained", torch.full((len(names),), math.nan))

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> TaskScores:
        """Those that ``plain`` gave."""
        made = cls(plain["tasks"])
        rows = [plain["untrained"], *plain["after"]]
        known = [[math.nan if value is None else value for value in row] for row in rows]
        made.untrained, made.after = torch.tensor(known[0]), torch.tensor(known[1:])
        return made

    def set(self, trained: int | None, task: int, score: float) -> None:
        """Score on ``task`` after task ``trained``, or before any training if that is None."""
        (self.untrained if trained is None else self.after[trained])[task] = score

    def plain(self) -> dict[str, Any]:
        """Everything as plain values for JSON; what is not known yet is None.

        Accuracy is the mean over tasks at the end; backward transfer the mean gain on a task since
        its training, forward transfer before it; forgetting the mean loss from the best score.
        """
        last, now = len(self.names) - 1, self.after[-1]
        found = {"untrained": self.untrained, "after": self.after, "accuracy": now.mean()}
        if last > 0:
            found["backward_transfer"] = (now - self.after.diagonal())[:last].mean()
            found["forward_transfer"] = (self.after.diagonal(1) - self.untrained[1:]).mean()
            found["forgetting"] = self.lost(last + 1).mean()
        return {"tasks": self.names, **{name: _known(v.tolist()) for name, v in found.items()}}

    def lost(self, trained: int) -> Tensor:
        """Best score less that after the last of so many tasks, of each task before it."""
        after = self.after[:trained, : trained - 1]
        return after[:-1].nan_to_num(-math.inf).amax(0) - after[-1]

    def lines(self) -> list[str]:
        """Table for people, one line per trained task, and the measures."""
        width = max(10, *map(len, self.names))
        rows = [
            ("", self.names),
            ("untrained", self.untrained),
            *zip(self.names, self.after, strict=True),
        ]
        table = []
        for name, row in rows:
            cells = [each if isinstance(each, str) else f"{float(each):.4f}" for each in row]
            table.append("  ".join([f"{name:<{width}}", *(f"{cell:>{width}}" for cell in cells)]))
        measures = {name: v for name, v in self.plain().items() if isinstance(v, float)}
        reported = [f"{name.replace('_', ' ')} {value:+.4f}" for name, value in measures.items()]
        return [*table, ", ".join(reported)]


def _known(value: Any) -> Any:
    if isinstance(value, list):
        return [_known(each) for each in value]
    return value if math.isfinite(value) else None
