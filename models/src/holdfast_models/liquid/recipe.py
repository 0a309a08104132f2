"""``holdfast train liquid``: data, network, objective and what happens between steps, together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from holdfast import HoldfastError
from holdfast.training import Place, Recipe, Task

from .course import Course
from .data.opening import Opened, open_data
from .data.tensor_rows import first_batch
from .forecast import forecast
from .model.model import LiquidNet, inputs_of
from .objective import HEADLINE, Objective
from .presets import PRESETS
from .run_settings import LiquidSettings
from .self_check import check_network, check_tasks

TABLES = "tables"
TOKENIZER = "tokenizer.json"
SIZES = "sizes"
_DRAWN = 4  # samples that pictures are of
_CHECKED = 8  # samples that the network is checked with


def build(settings: LiquidSettings, place: Place) -> Task:
    """Everything of a run."""
    opened = open_data(settings)
    if place.main:
        print(opened.found)
    if settings.self_check:
        check_tasks(opened.tasks)
    net = LiquidNet(settings.model, opened.sizes, settings.plasticity)
    steps = steps_of_epoch(settings, opened)
    course = Course(settings, net, opened.tasks, opened.train, steps)
    objective = Objective(settings, opened.sizes, course, opened.bytes_per_token)
    course.score_by(objective.score)

    def prepared(optimizer: Optimizer) -> None:
        course.prepared(optimizer)
        if settings.self_check:
            device = next(net.parameters()).device
            batch = first_batch(opened.tasks[0].validation, _CHECKED, device)
            check_network(net, settings, inputs_of(opened.sizes.task, batch))

    def ended(run: Path) -> None:
        _keep_scores(course, run)
        if settings.pictures:
            from .figures.pictures import draw

            draw(net, first_batch(opened.tasks[0].validation, _DRAWN), run, settings=settings)

    return Task(
        model=net,
        loss=objective.loss,
        train=opened.train,
        validation=opened.validation,
        measure=objective.measure,
        summarize=objective.summarize,
        headline=HEADLINE,
        predict=objective.predict,
        state={"course": course},
        prepared=prepared,
        stepped=course.stepped,
        opened=lambda run: _keep_facts(run, opened, course),
        ended=ended,
    )


def steps_of_epoch(settings: LiquidSettings, opened: Opened) -> int:
    """Optimizer steps in one pass over the data."""
    samples, loading = len(opened.train), settings.train.data  # pyright: ignore[reportArgumentType]
    batches = samples // loading.batch if loading.drop_last else -(-samples // loading.batch)
    return -(-batches // settings.train.accumulate)


def _keep_facts(run: Path, opened: Opened, course: Course) -> None:
    """What later commands need beside the settings and the weights."""
    if opened.tokenizer is not None:
        opened.tokenizer.save(run / TOKENIZER)
    _write(run, SIZES, opened.sizes._asdict())
    _write(run, "baselines", opened.baselines())
    if len(opened.tasks) > 1 and course.scores.untrained.isnan().all():
        with torch.random.fork_rng():
            course.score_untrained()


def _keep_scores(course: Course, run: Path) -> None:
    if len(course.scores.names) < 2:
        return
    _write(run, "continual", course.scores.plain())
    print("\n".join(course.scores.lines()))


def _write(run: Path, name: str, what: Mapping[str, Any]) -> None:
    folder = run / TABLES
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(what, indent=1) + "\n")


def read_table(run: Path, name: str) -> dict[str, Any]:
    """A table that a run left."""
    path = run / TABLES / f"{name}.json"
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        raise HoldfastError(
            f"{path} is missing or damaged: the run ended before its first step, or is none of "
            "holdfast train liquid"
        ) from None


RECIPE = Recipe(
    name="liquid",
    summary="spiking, liquid and Mamba layers with plasticity: text, images and robots",
    settings=LiquidSettings,
    build=build,
    presets=PRESETS,
    forecast=forecast,
    may_change=("data.folder", "pictures"),
)
