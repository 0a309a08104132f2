"""``holdfast track``."""

from __future__ import annotations

import argparse
import os
import select
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from ..config import RunSettings, TrackSettings, from_dict
from ..errors import HoldfastError, UsageError
from ..run import Run, find_run, life_of
from . import _output
from ._parser import RUN_OR_NEWEST
from ._warning import warn

if TYPE_CHECKING:
    from ..integrations.tracker import Tracker

_NAMES = ("mlflow", "tensorboard", "json")
# Seconds between two looks at a run that goes on.
_PAUSE = 2.0
# Seconds after the end in which the report is written.
_GRACE = 3.0
# Seconds without a change after which a run whose process is not on this machine counts as over.
_IDLE = 120.0


class TrackCommand:
    """Hand a run to an experiment tracker: MLflow, TensorBoard or JSON lines.

    Reads the run folder and nothing else, so any run will do: one that is over, one that was
    killed, one that goes on. What a tracker has got before is not handed over again. To follow
    a run from its start: holdfast train RECIPE --track mlflow, holdfast run --track mlflow SCRIPT.

      holdfast track runs/2026-11-15-1204-train --to mlflow
      holdfast track --to tensorboard --follow         the newest run, until it ends
      holdfast track RUN --to mlflow --to json

    MLflow writes to mlruns.db in the working directory, or to MLFLOW_TRACKING_URI:
      mlflow ui --backend-store-uri sqlite:///mlruns.db
      tensorboard --logdir runs
    """

    name = "track"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the options."""
        parser.add_argument("run", metavar="RUN", nargs="?", help=RUN_OR_NEWEST)
        parser.add_argument(
            "--to",
            metavar="NAME",
            action="append",
            choices=_NAMES,
            help="mlflow, tensorboard or json (repeatable; default: those of the run's settings)",
        )
        parser.add_argument("--follow", action="store_true", help="go on until the run ends")
        parser.add_argument(
            "--every", metavar="N", type=int, help="steps averaged to one point (default: 10)"
        )
        parser.add_argument("--experiment", metavar="NAME", help="experiment of MLflow")
        parser.add_argument("--name", metavar="NAME", help="name of the run in MLflow")
        parser.add_argument(
            "--new-run", action="store_true", help="hand everything to a new run of MLflow"
        )
        # How a training ends the process that follows it: by closing its standard input.
        parser.add_argument("--with-parent", action="store_true", help=argparse.SUPPRESS)

    def run(self, args: argparse.Namespace) -> int:
        """Settle what can be wrong, then hand over."""
        from ..integrations import make_sink
        from ..integrations.tracker import Tracker
        from ..launcher.tracking import usable

        run = find_run(args.run, RunSettings().root)
        settings = _settings(args, run)
        names, warnings = usable(settings.to)
        for warning in warnings:
            warn(warning)
        trackers = [
            Tracker(
                run,
                make_sink(name, run, settings, warn),
                settings,
                fresh=name == "mlflow" and settings.new_run,
            )
            for name in names
        ]
        if args.follow:
            _follow(run, trackers, with_parent=args.with_parent)
        goes_on = not args.follow and _goes_on(run)
        for tracker in list(trackers):
            count = _hand_over(trackers, Tracker.poll if goes_on else Tracker.finish, tracker)
            if tracker in trackers:
                _show(tracker, count, over=not goes_on)
                tracker.close()
        return 0 if len(trackers) == len(names) else 1


def _settings(args: argparse.Namespace, run: Run) -> TrackSettings:
    """The settings of the run, with what was given here in their place."""
    sections: Any = run.meta.get("settings")
    known: Any = cast("dict[str, Any]", sections) if isinstance(sections, dict) else {}
    settings = from_dict(known.get("track") or {}, kind=TrackSettings, source=str(run.path))
    given = {
        "to": args.to,
        "every": args.every,
        "experiment": args.experiment,
        "name": args.name,
    }
    changed = {key: value for key, value in given.items() if value is not None}
    settings = replace(settings, new_run=args.new_run, **changed)
    if not settings.to:
        raise UsageError(f"no tracker was named; write --to with one of {', '.join(_NAMES)}")
    return settings


def _hand_over(trackers: list[Tracker], step: Callable[[Tracker], int], tracker: Tracker) -> int:
    """Take a step of a tracker; one that cannot write is given up, the others go on."""
    try:
        return step(tracker)
    except (OSError, HoldfastError) as error:
        trackers.remove(tracker)
        warn(f"{tracker.sink.kind} is given up: {error}; try again later: holdfast track")
        return 0


def _follow(run: Run, trackers: list[Tracker], *, with_parent: bool) -> None:
    """Follow the run until it is over."""
    parent = os.getppid()
    if with_parent:
        os.nice(10)  # the training has the cores first
    changed = time.monotonic()
    while True:
        count = sum(_hand_over(trackers, type(one).poll, one) for one in list(trackers))
        changed = time.monotonic() if count else changed
        if with_parent:
            over = bool(select.select([sys.stdin], [], [], _PAUSE)[0]) or os.getppid() != parent
        else:
            time.sleep(_PAUSE)
            said, here = _state(run)
            still = _GRACE if said else _IDLE
            over = not here and time.monotonic() - changed > still
        if over:
            return


def _goes_on(run: Run) -> bool:
    """Whether a process of this machine still records it."""
    return life_of(Run.open(run.path)).state == "running"


def _state(run: Run) -> tuple[bool, bool]:
    """Whether the run says that it is over, and whether a process here records it.

    A run that was killed never says so; one on another machine has no process here.
    """
    try:
        return Run.open(run.path).meta.get("status") != "running", _goes_on(run)
    except HoldfastError:
        return True, False  # the folder is gone


def _show(tracker: Tracker, count: int, *, over: bool) -> None:
    end = "" if over else "; the run goes on, add --follow to go along"
    _output.write(f"{tracker.sink.kind}: {count} new points in {tracker.sink.target}{end}\n")
