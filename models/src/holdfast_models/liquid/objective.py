"""Losses and measures of the three tasks, and what is told of a step beside them.

B batch, T tokens or time steps, V vocabulary or classes, M signals, L blocks, K spiking units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .course import Course
from .model.block import Inside
from .model.mixing.gate import entropy
from .model.model import Output, Sizes, inputs_of
from .run_settings import LiquidSettings

HEADLINE = ("loss", "perplexity", "bits_per_byte", "accuracy", "r2", "forgetting")
"""What people look at first."""

_SATURATED = 0.95  # rate above which a unit says nothing but one
_SMOOTHING = 0.05  # of the classes of images


class Objective:
    """Loss and measures of one run; calls the net it is given, which may be wrapped.

    Args:
        settings: of the run.
        sizes: of the data.
        course: what happens between steps: it knows the classes seen so far, and what is replayed.
        bytes_per_token: of the text, for bits per byte.
    """

    def __init__(
        self, settings: LiquidSettings, sizes: Sizes, course: Course, bytes_per_token: float
    ) -> None:
        self._settings, self._task, self._course = settings, sizes.task, course
        self._bytes = bytes_per_token

    def loss(self, net: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Any]]:
        """The loss of a batch and of what is replayed with it, and numbers beside it."""
        fresh = _rows(batch)
        batch, slots = self._course.with_replay(batch)
        out = self._pass(net, batch, self._smoothing)
        loss_B, right_B = self._by_sample(out.y_BTV, batch, self._smoothing)
        self._course.seen(batch, loss_B, out.inside, fresh, slots)
        loss = loss_B.mean()
        reported: dict[str, Any] = {"tokens": _tokens(self._task, batch)}
        reported |= (
            {"accuracy": right_B.mean()} if right_B is not None else {"error": loss.detach()}
        )
        reported |= reported_of(out.inside) | self._course.reported()
        floor = self._settings.model.mamba.gate_floor
        if floor:
            openings = [one.opening_BTG for one in out.inside if one.opening_BTG is not None]
            for opening_BTG in openings:
                short_G = (floor * math.log(2) - entropy(opening_BTG)).relu()
                loss = loss + short_G.mean() / len(openings)
        return loss, reported

    def measure(self, net: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The loss of a held-out batch, and rows of its samples for ``summarize``."""
        out = self._pass(net, batch)
        loss_B, right_B = self._by_sample(out.y_BTV, batch)
        found = {"loss": loss_B.mean(), "nats_B": loss_B}
        if right_B is not None:
            return found | {"right_B": right_B}
        off_BTM = out.y_BTV.float() - batch["y"]
        return found | {
            "off_B": off_BTM.square().flatten(1).sum(1),
            "sum_BM": batch["y"].sum(1),
            "square_BM": batch["y"].square().sum(1),
            "steps_B": torch.full_like(loss_B, batch["y"].shape[1]),
        }

    def summarize(self, rows: Mapping[str, Tensor]) -> dict[str, float]:
        """Numbers of all held-out samples."""
        nats = float(rows["nats_B"].mean())
        found: dict[str, float] = {}
        if self._task == "llm":
            found |= {
                "perplexity": math.exp(min(nats, 700.0)),
                "bits_per_byte": nats / math.log(2) / self._bytes,
            }
        if "right_B" in rows:
            found["accuracy"] = float(rows["right_B"].mean())
        else:
            count = rows["steps_B"].sum()
            spread = rows["square_BM"].sum(0) - rows["sum_BM"].sum(0).square() / count
            found["r2"] = 1 - float(rows["off_B"].sum() / spread.sum())
        return found | self._course.measured()

    def score(self, net: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """Of each sample: the share of right answers, or minus the error of a robot."""
        loss_B, right_B = self._by_sample(self._pass(net, batch).y_BTV, batch)
        return -loss_B if right_B is None else right_B

    def predict(self, net: nn.Module, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What the model says: the likeliest token or class of each place, or signals."""
        out: Output = net(*inputs_of(self._task, batch))
        if self._task == "robotics":
            return {"y_BTM": out.y_BTV.float()}
        return {"likeliest": self._masked(out.y_BTV).argmax(-1)}

    def _pass(self, net: nn.Module, batch: Mapping[str, Tensor], smoothing: float = 0.0) -> Output:
        inputs = inputs_of(self._task, batch)
        if self._task != "llm":
            return net(*inputs)
        return net(*inputs, target_BT=batch["targets"], smoothing=smoothing)

    def _by_sample(
        self, y_BTV: Tensor, batch: Mapping[str, Tensor], smoothing: float = 0.0
    ) -> tuple[Tensor, Tensor | None]:
        """The loss of each sample, and its share of right answers where there are such."""
        if self._task == "llm":  # by the head, which need not have all logits at once
            loss_B, right_B = y_BTV.mean(1).unbind(-1)
            return loss_B, right_B.detach()
        y_BTV = y_BTV.float()
        if self._task == "robotics":
            loss = nn.functional.smooth_l1_loss(y_BTV, batch["y"], reduction="none")
            return loss.flatten(1).mean(1), None
        label_B, y_BC = batch["label"], self._masked(y_BTV)
        loss_B = nn.functional.cross_entropy(
            y_BC, label_B, reduction="none", label_smoothing=smoothing
        )
        return loss_B, (y_BC.detach().argmax(-1) == label_B).float()

    @property
    def _smoothing(self) -> float:
        given = self._settings.label_smoothing
        return given if given is not None else _SMOOTHING if self._task == "vision" else 0.0

    def _masked(self, y_BTV: Tensor) -> Tensor:
        """Classes that no task so far has shown are no answer."""
        hidden_V = self._course.hidden_classes(y_BTV.device)
        return y_BTV if hidden_V is None else y_BTV.masked_fill(hidden_V, -1e9)


@torch.no_grad()
def reported_of(inside: tuple[Inside, ...]) -> dict[str, Tensor]:
    """How the blocks fire and mix, a mean over blocks each."""
    rate_LK = torch.stack([one.rate_BTK.float().mean((0, 1)) for one in inside])
    reported = {
        "spike_rate": rate_LK.mean(),
        "silent_units": (rate_LK == 0).float().mean(),
        "saturated_units": (rate_LK > _SATURATED).float().mean(),
        "near_threshold": _mean([parts.float().sum() for one in inside for parts in one.near]),
    }
    openings = [one.opening_BTG.float().mean() for one in inside if one.opening_BTG is not None]
    return reported | ({"gate_opening": _mean(openings)} if openings else {})


def _mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean()


def _rows(batch: Mapping[str, Tensor]) -> int:
    return len(next(iter(batch.values())))


def _tokens(task: str, batch: Mapping[str, Tensor]) -> int:
    return batch["tokens"].numel() if task == "llm" else _rows(batch)
