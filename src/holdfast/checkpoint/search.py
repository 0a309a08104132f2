"""Which checkpoint a run is to go on from."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from ..errors import CheckpointError, UsageError
from .record import LAST, is_single
from .store import FOLDER, CheckpointStore, Entry

Resume = bool | Literal["auto", "anew"] | str | os.PathLike[str] | None
"""What ``watch(resume=...)`` takes."""


def find(
    resume: Resume, given: str | None, run_dir: str | None, rank: int, say: Callable[[str], None]
) -> Path | None:
    """The checkpoint that ``resume=`` asks for; None when "auto" finds none.

    Args:
        resume: True, "auto", a checkpoint, or a folder that holds some; "anew" goes on in the
            folder of the run, but from no checkpoint.
        given: the setting ``checkpoint.dir``.
        run_dir: the folder of the run, if it was named.
        rank: whose checkpoints.
        say: told of damaged ones that are passed over.
    """
    if resume is None or resume is False or resume == "anew":
        return None
    if resume is True or resume == "auto":
        folder = given or (run_dir and os.path.join(run_dir, FOLDER))
        if not folder:
            raise UsageError(
                f"resume={resume!r} does not say from which run; give run_dir= as in the run "
                "before, set checkpoint.dir, or give the path of a checkpoint"
            )
        path = Path(folder)
    else:
        path = Path(resume)
        if is_single(path):
            return path
        path = path / FOLDER if (path / FOLDER).is_dir() else path

    def refused(entry: Entry) -> None:
        say(f"checkpoint {entry.path.name} is damaged ({entry.damage}); looking for an older one")

    store = CheckpointStore(path)
    there = {entry.rank for entry in store.entries()}
    rank = rank if rank in there else 0  # a run that had fewer ranks
    # The state a run ended with has no place in the data: only who names its file goes on from it.
    entry = store.latest(rank=rank, refused=refused, but=LAST)
    last = store.latest(rank=rank) if entry is None else None
    if last is not None:
        say(
            f"{last.path.name} is the state that a run ended with, without its place in the data; "
            f"to go on from it all the same: resume={str(last.path)!r}"
        )
    if entry is None and resume != "auto":
        raise CheckpointError(
            f"there is no good checkpoint to resume from, in {path}; "
            f"see what there is: holdfast checkpoint ls {path}, or start anew with resume='auto'"
        )
    return None if entry is None else entry.path
