"""The process that hands a run to experiment trackers while it is recorded.

It is started beside the training, reads the run folder and nothing else, and ends when its
standard input does: when the training says so, or when the training is gone. Whatever goes wrong
in it is a line at the end; the training neither waits for it nor learns of it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, Self

from ..config import Settings, TrackSettings

# Seconds that a training waits for the last numbers; what is left is handed over behind it.
_PATIENCE = 8.0
URI_VARIABLE = "MLFLOW_TRACKING_URI"
_FALLBACK = "json"


def usable(
    names: Iterable[str], environ: Mapping[str, str] = os.environ
) -> tuple[list[str], list[str]]:
    """The trackers whose packages are there, and a line for each that JSON lines stand in for."""
    found: list[str] = []
    warnings: list[str] = []
    for name in names:
        missing = next((package for package in needs(name, environ) if not _is_there(package)), "")
        if missing:
            warnings.append(
                f"{name} is not followed: the package {missing} is missing "
                f'(pip install "holdfast[{name}]"); JSON lines and CSV take over'
            )
        found.append(_FALLBACK if missing else name)
    return list(dict.fromkeys(found)), warnings


def needs(name: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The packages of a tracker; a server of MLflow has its database to itself."""
    if name != "mlflow":
        return ("tensorboard",) if name == "tensorboard" else ()
    served = environ.get(URI_VARIABLE, "").startswith("http")
    return ("mlflow",) if served else ("mlflow", "sqlalchemy", "alembic")


class Follower:
    """``holdfast track RUN --follow`` as a child of the training."""

    def __init__(self, child: subprocess.Popen[bytes], reported: IO[bytes], say: Any) -> None:
        self._child, self._reported, self._say = child, reported, say
        self._pid = os.getpid()

    @classmethod
    def start(cls, run: Path, settings: Settings, say: Callable[[str], None]) -> Self | None:
        """Start it; None where nothing is to be tracked, or the process cannot be made."""
        names, warnings = usable(settings.track.to)
        for warning in warnings:
            say(f"holdfast: {warning}")
        if not names:
            return None
        words = [*_command(run, settings.track), *(f"--to={name}" for name in names)]
        try:
            with contextlib.ExitStack() as stack:
                # Its words wait here until the progress bar is gone.
                reported = stack.enter_context(tempfile.TemporaryFile())
                # Ctrl-C, and a launcher that ends its group, are for the training.
                child = subprocess.Popen(
                    words,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=reported,
                    start_new_session=True,
                )
                stack.pop_all()
        except OSError as error:
            say(f"holdfast: the run is not tracked: {error}; later: holdfast track {run}")
            return None
        if not settings.run.quiet:
            say(f"holdfast: followed by {', '.join(names)}")
        return cls(child, reported, say)

    def end(self, patience: float = _PATIENCE) -> None:
        """The run is complete: have the rest handed over, and tell what went wrong."""
        if os.getpid() != self._pid:  # a forked worker closes what its parent had open
            return
        with contextlib.suppress(OSError):
            if self._child.stdin is not None:
                self._child.stdin.close()
        try:
            self._child.wait(patience)
        except subprocess.TimeoutExpired:
            self._say(
                f"holdfast: trackers are still being filled by process {self._child.pid}, "
                "which ends by itself"
            )
            # Not waited for: this process ends before it.
            self._child.returncode = 0
        with contextlib.suppress(OSError, ValueError):
            self._reported.seek(0)
            for line in self._reported.read().decode(errors="replace").splitlines():
                self._say(line)
            self._reported.close()


def _command(run: Path, settings: TrackSettings) -> list[str]:
    # -P: a folder that is called mlflow, in the working directory, is not the package.
    words = [sys.executable, "-P", "-m", "holdfast", "track", str(run.resolve())]
    words += ["--follow", "--with-parent", "--every", str(settings.every)]
    for option, value in (("--experiment", settings.experiment), ("--name", settings.name)):
        words += [] if value is None else [f"{option}={value}"]
    return [*words, *["--new-run"] * settings.new_run]


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False
