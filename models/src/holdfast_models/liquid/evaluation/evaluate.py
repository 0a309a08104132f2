"""Validation numbers of a trained run, beside those of predictors that need no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from holdfast import HoldfastError

from ..course import Course
from ..data.opening import open_data
from ..data.tensor_rows import batches
from ..loading import Loaded
from ..objective import Objective
from ..recipe import TOKENIZER
from .ablation import changed


class Evaluation(NamedTuple):
    """Numbers of the held-out samples of each task, and what there is to beat on the first."""

    tasks: dict[str, dict[str, float]]
    baselines: Mapping[str, float]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"tasks": self.tasks, "baselines": dict(self.baselines)}

    def lines(self) -> list[str]:
        """For people: a row for each task, then what a network has to beat."""
        return [
            f"{name}: " + ", ".join(f"{key} {value:,.6g}" for key, value in row.items())
            for name, row in {**self.tasks, "to beat": self.baselines}.items()
        ]


def evaluate(loaded: Loaded, sources: Sequence[str] = (), *, batch: int = 64) -> Evaluation:
    """Measure a run on the held-out data of its tasks, or on those of other texts.

    Args:
        loaded: from ``load_run``.
        sources: files, folders or names of corpora, read with the tokenizer of the run.
        batch: samples at once.
    """
    settings = loaded.settings
    if sources and settings.task != "llm":
        raise HoldfastError(f"{sources[0]}: a run of {settings.task} reads no text; give none")
    tokenizer = str(loaded.run / TOKENIZER)
    other = {"data.sources": tuple(sources), "data.tokenizer": tokenizer, "continual.on": False}
    opened = open_data(changed(settings, other)) if sources else loaded.opened()
    if opened.sizes != loaded.net.sizes:
        raise HoldfastError(
            f"the data are now {opened.sizes}, the network is for {loaded.net.sizes}; give the "
            "files that the run was trained on"
        )
    tasks = {task.name: _numbers(loaded, task.validation, batch) for task in opened.tasks}
    return Evaluation(tasks, opened.baselines())


@torch.no_grad()
def _numbers(loaded: Loaded, data: Any, size: int) -> dict[str, float]:
    off = {"self_check": False, "plasticity.on": False, "plasticity.meta.on": False}
    course = Course(changed(loaded.settings, off), loaded.net, (), data, None)
    bytes_per_token = getattr(data, "bytes_per_token", 1.0)
    objective = Objective(loaded.settings, loaded.net.sizes, course, bytes_per_token)
    device = next(loaded.net.parameters()).device
    found = [objective.measure(loaded.net, one) for one in batches(data, size, device=device)]
    whole = {name: torch.cat([one[name] for one in found]) for name in found[0] if name != "loss"}
    loss = float(whole["nats_B"].double().mean())
    return {"samples": len(data), "loss": loss, **objective.summarize(whole)}
