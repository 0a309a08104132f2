"""Where ``holdfast run --resume`` goes on from."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from ..checkpoint.record import verify
from ..config import Settings
from ..errors import CheckpointError, UsageError
from ..launcher.command import ScriptCommand
from ..redaction import redact_command
from ..run import Run, life_of, run_path
from ..run.resumption import NONE_YET, checkpoints, other_script, resumable, script_digest
from . import _appended

AUTO = "auto"
_SEARCHED = 200
"""Runs that "auto" looks at, the newest first."""


def find(
    word: str, settings: Settings, command: ScriptCommand, say: Callable[[str], object]
) -> dict[str, Any] | None:
    """What ``run.json`` of the new run says about the old one; None where "auto" finds none."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 or command.several:
        raise UsageError("--resume goes on with one process; several ranks are not supported")
    digest, reported = script_digest(command.source), redact_command(list(command.words))
    if word == AUTO:
        return _newest(settings, reported, digest, say)
    run = Run.open(run_path(word, settings.run.root))
    why = other_script(run.meta, reported, digest)
    if why:
        raise UsageError(f"cannot resume {run.path}: {why}; give the same script and arguments")
    if life_of(run).state == "running":
        raise UsageError(f"cannot resume {run.path}: it is still running")
    point = _point(run, say)
    if point is None:
        raise _refusal(run, resumable(run).why or "none of its checkpoints is whole")
    return point


def _newest(
    settings: Settings, reported: Sequence[str], digest: str, say: Callable[[str], object]
) -> dict[str, Any] | None:
    passed: list[Run] = []
    for run in Run.list(settings.run.root)[:_SEARCHED]:
        if other_script(run.meta, reported, digest):
            continue
        if run.meta.get("exit_code") == 0:
            which = "the one before, " if passed else "the newest run of this script, "
            say(f"holdfast: {which}{run.path}, has finished; starts anew")
            return _anew(passed, say)
        if life_of(run).state == "running":
            raise UsageError(f"cannot resume {run.path}: it is still running")
        point = _point(run, say)
        if point is not None:
            return point
        why = resumable(run)
        if why.reason != NONE_YET:
            # Its outputs are there, and to begin at step 0 would overwrite them.
            raise _refusal(run, why.why or "none of its checkpoints is whole")
        passed.append(run)
        say(f"holdfast: passes over {run.path}: {why.why}")
    say("holdfast: there is no run of this script to go on with; starts anew")
    return _anew(passed, say)


def _anew(passed: Sequence[Run], say: Callable[[str], object]) -> None:
    """What the newest run has appended may come again; one before it was left so on purpose."""
    if passed:
        _appended.name_logs(passed[0], say)


def _refusal(run: Run, why: str) -> UsageError:
    return UsageError(f"cannot resume {run.path}: {why}; start anew without --resume")


def _point(run: Run, say: Callable[[str], object]) -> dict[str, Any] | None:
    """The newest checkpoint of a run that can be resumed from and is whole."""
    for step, path in checkpoints(run):
        try:
            verify(path)
        except CheckpointError as error:
            say(f"holdfast: {error}")
            continue
        return {"run": str(run.path), "step": step, "checkpoint": str(path)}
    return None
