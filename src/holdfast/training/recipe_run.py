"""A recipe from its settings to its end: what ``holdfast train`` does."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..checkpoint.record import is_single
from ..checkpoint.search import Resume
from . import channels, distributed, seeding
from .batch_size.finding import largest_batch
from .device import Place
from .forecast import announce
from .loop.artifacts import ERRORS
from .loop.validation_schedule import reported
from .recipes import CONFIG, Recipe, to_yaml
from .resuming import adopt
from .task import Task
from .trainer import Result, Trainer


def run_recipe(
    recipe: Recipe,
    settings: Any,
    *,
    run_dir: str | os.PathLike[str] | None = None,
    resume: Resume = None,
    quiet: bool = False,
) -> int:
    """Build, train, and say how it ended; the exit code.

    Args:
        recipe: what to train.
        settings: of the recipe's own kind.
        run_dir: folder of the run; a new one under ``runs/`` by default.
        resume: as in ``holdfast.watch``.
        quiet: show nothing but the end.
    """
    train = settings.train
    if quiet:
        guard = train.holdfast
        train = replace(train, holdfast=replace(guard, run=replace(guard.run, quiet=True)))

    def opened(folder: Path) -> None:
        (folder / CONFIG).write_text(to_yaml(settings), encoding="utf-8")
        if not isinstance(resume, Path) or not resume.exists() or not is_single(resume):
            return
        if resume.parent.parent != folder:
            adopt(resume, folder)

    with distributed.joined(train.device) as place, channels.written(train.log, place):
        if recipe.forecast is not None:
            say = print if place.main and not quiet else _nobody
            announce(recipe.name, recipe.forecast(settings, place), place, say)
        task = _built(recipe, settings, place)
        trainer = Trainer.of(
            task, train, run_dir=run_dir, resume=resume, name=recipe.name, opened=opened
        )
        result = trainer.fit()
        if place.main:
            print("\n".join(end_lines(result, recipe)))
    return 128 + signal.SIGINT if result.interrupted else 0


def find_recipe_batch(recipe: Recipe, settings: Any) -> int:
    """Try how large ``data.batch`` may be, and print the result; the exit code."""
    with distributed.joined(settings.train.device) as place:
        task = _built(recipe, settings, place)
        found = largest_batch(task, settings.train, place, _to_stderr if place.main else _nobody)
        if place.main:
            print(
                f"train.data.batch={found.batch * place.world} fits ({found.why}); "
                f"{found.fastest * place.world} is about as fast"
            )
    return 0


def _built(recipe: Recipe, settings: Any, place: Place) -> Task:
    put_back = seeding.prepare(settings.train.seed, place.rank)
    try:
        return recipe.build(settings, place)
    finally:
        put_back()


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _nobody(line: str) -> None:
    """Other ranks say nothing."""


def end_lines(result: Result, recipe: Recipe) -> list[str]:
    """How a run ended, for people."""
    lines = [f"{recipe.name}: ended at step {result.step} because {result.why}"]
    if result.validation:
        shown = reported(result.validation, result.headline)
        values = ", ".join(f"{name} {value:.4g}" for name, value in shown.items())
        lines.append(f"  validation  {values}; best {result.best:.4g} at step {result.best_step}")
    compiling = f", {result.compile_seconds:.0f} s compiling" if result.compile_seconds else ""
    lines.append(
        f"  time        {result.seconds:.1f} s{compiling}, {result.rate:.0f} samples/s, "
        f"{result.skipped} steps skipped"
    )
    if result.norms:
        lines.append(f"  gradients   {result.norms}")
    if result.hook_errors:
        lines.append(f"  hooks       {result.hook_errors} failed; see {ERRORS} in the run folder")
    if result.interrupted and result.run is not None:
        lines.append(f"  go on with  holdfast train {recipe.name} --resume {result.run}")
    return [*lines, result.report] if result.report else lines
