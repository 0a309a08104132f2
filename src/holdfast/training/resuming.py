"""What a run is to go on from: which run, which of its checkpoints, and whether its state fits."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

from ..checkpoint.record import record_path
from ..checkpoint.store import FOLDER, CheckpointStore, Entry
from ..errors import CheckpointError, HoldfastError, UsageError
from ..run import Run
from ..run.durable import TEMPORARY
from .differences import Difference, graded, refuse_errors
from .loop.validation_schedule import BEST
from .recipe import Recipe
from .resolving import CONFIG, resolve


def newest_run(recipe: Recipe, root: str | os.PathLike[str]) -> Path:
    """The newest run of a recipe under ``root`` that has a checkpoint."""
    for run in Run.list(root):
        ours = run.meta.get("script") == recipe.name
        # One that another rank has just made for this very launch has none.
        if ours and CheckpointStore(run.path / FOLDER).resumable():
            return run.path
    raise UsageError(
        f"there is no run of {recipe.name} with a checkpoint under {root}; name one: --resume RUN"
    )


def best_checkpoint(run: Path, rank: int = 0) -> Entry:
    """The best checkpoint of a run by validation, proven whole; ``CheckpointError`` without one.

    A rank that was not there when it was saved gets that of the first.
    """
    try:
        mode = Run.open(run).meta["settings"]["checkpoint"]["mode"]
    except KeyError:
        mode = "min"
    store = CheckpointStore(run / FOLDER)
    entry = store.best(BEST, mode, proven=True)
    if entry is None:
        raise CheckpointError(
            f"{run} has no good checkpoint that was validated; "
            f"go on from its newest one: --resume {run}"
        )
    own = [one for one in store.entries(rank) if one.step == entry.step and one.good]
    same = [one for one in own if one.world == entry.world and not one.checked().damage]
    return same[0] if same else entry


def adopt(checkpoint: Path, run: Path) -> None:
    """Copy a checkpoint into another run, which then has a best state from its first step on."""
    folder = run / FOLDER
    folder.mkdir(exist_ok=True)
    if checkpoint.is_dir():  # of several ranks; each of them may come here, the first is enough
        temporary = folder / f"{checkpoint.name}.adopted-{os.getpid()}{TEMPORARY}"
        shutil.copytree(checkpoint, temporary)
        with contextlib.suppress(OSError):
            temporary.rename(folder / checkpoint.name)
        shutil.rmtree(temporary, ignore_errors=True)
        return
    # The data first: a record stands for data that is there.
    for path in (checkpoint, record_path(checkpoint)):
        shutil.copy2(path, folder / path.name)


def check_recipe(recipe: Recipe, run: Path) -> None:
    """Refuse a run of another recipe."""
    name = Run.open(run).meta.get("script")
    if name != recipe.name:
        raise UsageError(
            f"{run} cannot be resumed: recipe was {name}, is {recipe.name}; "
            "name the recipe it was started with"
        )


def compare_with_run(recipe: Recipe, settings: Any, run: Path) -> tuple[list[Difference], str]:
    """What differs from the settings of a run that is to be resumed, before anything is built.

    Raises ``UsageError`` in one line where the saved state would not fit. The second value says
    why nothing could be compared; empty as a rule.
    """
    if not (run / CONFIG).is_file():
        return [], f"{run} has no {CONFIG}"
    try:
        saved = resolve(recipe, str(run / CONFIG), platform="none")
    except HoldfastError as error:
        return [], str(error)
    found = graded(saved, settings, recipe.may_change, recipe.compare)
    refuse_errors(found, str(run))
    return found, ""
