"""``holdfast predict``."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Mapping
from typing import Any

from ..config import RunSettings
from ..errors import UsageError
from ..run import Run, run_path
from . import _output
from ._parser import old_name
from ._warning import warn


class PredictCommand:
    """Write what a trained model predicts for its data.

    RUN is a run of holdfast train (its folder, its name or last), or one checkpoint in it: the
    best weights are used, or their average if averaging was on. Predictions are written as they
    are made, as a folder of tensors that holdfast.training.MappedTensors reads. The same command
    goes on where an interrupted one stopped.

      holdfast predict runs/mine
      holdfast predict runs/mine --data train --entries 0:50000 --output first_half
      holdfast predict runs/mine --recipe mine.py --set train.device=cpu
    """

    name = "predict"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the options."""
        parser.add_argument("source", metavar="RUN", help="run, or one of its checkpoints")
        parser.add_argument(
            "--recipe", metavar="RECIPE", help="what was trained (default: as the run says)"
        )
        parser.add_argument(
            "--data",
            choices=("validation", "train"),
            default="validation",
            help="which data of the recipe (default: validation)",
        )
        parser.add_argument(
            "--entries",
            metavar="FIRST:LAST",
            default=":",
            help="samples from FIRST up to, not including, LAST (default: all)",
        )
        parser.add_argument(
            "--output", metavar="DIR", help="folder to write (default: predictions/DATA in the run)"
        )
        old_name(parser, "--out", "output")
        parser.add_argument(
            "--chunk",
            metavar="N",
            type=int,
            default=4096,
            help="samples after which everything written is made safe (default: 4096)",
        )
        parser.add_argument(
            "--set",
            metavar="KEY=VALUE",
            action="append",
            default=[],
            help="a setting other than the run's, e.g. train.validation.batch=256 (repeatable)",
        )
        parser.add_argument("--overwrite", action="store_true", help="replace what DIR holds")

    def run(self, args: argparse.Namespace) -> int:
        """Find recipe, settings and weights, then predict."""
        from ..torch_version import require_torch

        require_torch()
        from ..training.predicting import TensorPredictions, predict_run
        from ..training.recipes import find_recipe, former_run, resolve, saved_config

        entries = _entries(args.entries)
        source = run_path(args.source, RunSettings().root)
        run = former_run(str(source))
        # Before its recipe is looked for: the script of `holdfast run` must not be imported.
        saved = saved_config(run)
        recipe = find_recipe(args.recipe or str(Run.open(run).meta.get("script", "")), warn)
        settings = resolve(recipe, saved, None, args.set, "none")
        out = args.output or run / "predictions" / args.data

        def make_writer(what: Mapping[str, Any]) -> TensorPredictions:
            return TensorPredictions(out, what, overwrite=args.overwrite)

        done = predict_run(
            recipe,
            settings,
            source,
            make_writer,
            of=args.data,
            entries=entries,
            chunk=args.chunk,
            say=warn,
        )
        again = f", {done.before} of them before" if done.before else ""
        _output.write(f"{done.entries} samples{again}, {done.seconds:.1f} s: {out}\n")
        if done.finished:
            return 0
        warn("interrupted; the same command goes on from here")
        return 128 + signal.SIGINT


def _entries(text: str) -> tuple[int, int | None]:
    """``FIRST:LAST``, either of which may be missing.

    >>> _entries("10:20"), _entries(":"), _entries("5:")
    ((10, 20), (0, None), (5, None))
    """
    first, colon, last = text.partition(":")
    try:
        found = int(first or 0), int(last) if last else None
    except ValueError:
        colon, found = "", (0, None)
    if not colon or found[0] < 0 or (found[1] is not None and found[1] <= found[0]):
        raise UsageError(f"--entries {text!r}; write FIRST:LAST, such as 0:50000")
    return found
