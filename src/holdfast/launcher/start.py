"""Run folder of a launch: a new one, or the one that another rank has just made."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from .. import __version__, config
from ..config import Settings
from ..errors import RunFolderError
from ..redaction import redact_command
from ..run import ProcessMark, Run
from ..run.durable import share
from ..run.folder import ignore_runs
from ..run.life import PROCESS
from ..run.resumption import DIGEST, RESUMED_FROM, script_digest

_PATIENCE = 10.0


def start_run(
    settings: Settings,
    script: str,
    command: Sequence[str],
    resumed_from: Mapping[str, Any] | None = None,
    *,
    source: str | None = None,
    started_by: str = "",
) -> Run:
    """Make the folder of a run, or join it when another rank was faster.

    Args:
        settings: of the run.
        script: its name.
        command: as it was given.
        resumed_from: the run, the step and the checkpoint that it goes on from.
        source: the file that is run, empty for none; the first word of the command by default.
        started_by: what stands before the command where it is typed.
    """
    meta = _facts(settings, script, command)
    if started_by:
        meta["started_by"] = started_by
    meta[DIGEST] = script_digest("".join(command[:1]) if source is None else source)
    if resumed_from is not None:
        meta[RESUMED_FROM] = dict(resumed_from)
    share(settings.run.shared)
    launch = _launch(os.environ)
    if launch is None:
        if settings.run.dir is not None:
            return Run.create(settings.run.dir, meta)
        return Run.create_in(settings.run.root, script, meta)
    path, identity = launch.folder(settings, script), launch.identity
    new_root = settings.run.dir is None and not path.parent.exists()
    try:
        run = Run.create(path, {**meta, "launch": identity})
    except RunFolderError:
        return _join(path, identity)
    if new_root:
        ignore_runs(path.parent)
    return run


def former_life(settings: Settings, script: str) -> Path | None:
    """The folder that this launch has made already, before it started its ranks again."""
    launch = _launch(os.environ)
    if launch is None:
        return None
    path = launch.folder(settings, script)
    try:
        return path if Run.open(path).meta.get("launch") == launch.identity else None
    except RunFolderError:
        return None


def _join(path: Path, launch: str) -> Run:
    """Open the run another rank of the same launch has made; its folder comes before its facts."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            run = Run.open(path)
        except RunFolderError:
            if time.monotonic() > until or not path.is_dir():
                raise
            time.sleep(0.05)
            continue
        if run.meta.get("launch") != launch:
            raise RunFolderError(
                f"{path} already holds a run of another launch; choose a new folder with --run-dir"
            )
        return run


class _Launch(NamedTuple):
    """What all ranks of one launch agree on without communication."""

    name: str
    """The rendezvous id, where one was given: the same on all nodes and in every life."""
    started: datetime
    """When the launcher of this node was."""

    @property
    def identity(self) -> str:
        return self.name or self.started.isoformat()

    def folder(self, settings: Settings, script: str) -> Path:
        if settings.run.dir is not None:
            return Path(settings.run.dir)
        name = Path(script).name.removesuffix(".py")  # no other suffix: a recipe may have a dot
        suffix = f"-{self.name}" if self.name else ""
        return Path(settings.run.root) / f"{self.started:%Y-%m-%d-%H%M%S}-{name}{suffix}"


def _launch(environment: Mapping[str, str]) -> _Launch | None:
    """The launch of this process; None where nobody has started it as a rank.

    Under ``torchrun … -m holdfast run`` every rank has its own parent. They share the launcher,
    so its run id where one was given, or else its start time, names the run.
    """
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    launcher = psutil.Process().parent()
    started = launcher.create_time() if launcher is not None else time.time()
    identity = environment.get("TORCHELASTIC_RUN_ID", "none")
    return _Launch(
        "" if identity == "none" else identity, datetime.fromtimestamp(started).astimezone()
    )


def _facts(settings: Settings, script: str, command: Sequence[str]) -> dict[str, Any]:
    return {
        "created": datetime.now(UTC).isoformat(),
        "status": "running",
        "script": script,
        "command": redact_command(list(command)),
        "holdfast": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        PROCESS: ProcessMark.of().to_dict(),
        "settings": config.to_dict(settings),
    }
