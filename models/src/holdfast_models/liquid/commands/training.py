"""The verbs that take the specification's flags: train, config."""

from __future__ import annotations

import argparse
import dataclasses
import os
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ...answers import Verb, add_set, answer, changed, named_run, reported_as, yaml_lines
from ..flags import add_flags, check_effect, overrides

if TYPE_CHECKING:
    from ..run_settings import LiquidSettings


def add_train_verbs(verb: Verb) -> None:
    """Describe them."""
    what = "Train: the specification's flags, put into settings for `holdfast train liquid`."
    one = verb("train", what, _train, _TRAIN, json=False)
    _add_settings(one)
    one.add_argument("--save-config", metavar="FILE", help="write the settings here, then train")
    one.add_argument(
        "--resume", metavar="RUN", type=named_run, help="go on with a run and its settings"
    )
    one.add_argument("--run-dir", metavar="DIR", help="folder for this run")
    one.add_argument("--quiet", action="store_true", help="no progress, no live lines")

    what = "Print the settings that flags stand for, as YAML that --config-path reads."
    one = verb("config", what, _config, "  holdfast liquid config --preset phase3 --full")
    _add_settings(one)
    one.add_argument("--full", action="store_true", help="also what is as by default")
    one.set_defaults(resume=None)


_TRAIN = """\
  holdfast liquid train --resume runs/first --epochs 20
  torchrun --nproc-per-node 2 -m holdfast liquid train --preset phase4
Without a preset, file or run the sizes are those of the reference. A flag that would change
nothing is refused."""


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config-path", dest="config", metavar="FILE", help="settings as YAML")
    parser.add_argument("--preset", metavar="NAME", help="see: holdfast train --list")
    add_set(parser, "any other setting, e.g. data.megabytes=1")
    add_flags(parser)


def _train(args: argparse.Namespace) -> int:
    words, settings = _settled(args)
    if args.save_config and os.environ.get("RANK", "0") == "0":
        with reported_as(f"--save-config {args.save_config}"):
            lines = [*yaml_lines(dataclasses.asdict(settings)), ""]
            Path(args.save_config).write_text("\n".join(lines), encoding="utf-8")
    line = ["train", "liquid", *(["--quiet"] if args.quiet else [])]
    for name in ("config", "preset", "run-dir", "resume"):
        value = getattr(args, name.replace("-", "_"))
        line += [f"--{name}", value] if value is not None else []
    for word in words:
        line += ["--set", word]
    return _holdfast(line)


def _holdfast(words: list[str]) -> int:
    """What ``python -m holdfast`` does with these words, in this process."""
    before, sys.argv = sys.argv, ["holdfast", *words]
    try:
        runpy.run_module("holdfast", run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = before
    return 0


def _config(args: argparse.Namespace) -> int:
    from ..run_settings import LiquidSettings

    settings = dataclasses.asdict(_settled(args)[1])
    if not args.full:
        settings = changed(settings, dataclasses.asdict(LiquidSettings()))
    answer(args, settings, [*yaml_lines(settings)] or ["# everything is as by default"])
    return 0


def _settled(args: argparse.Namespace) -> tuple[list[str], LiquidSettings]:
    """What goes to ``--set``, and the settings that come of it."""
    from holdfast import Run
    from holdfast.training import resolve, saved_config

    from ..data.opening import open_data
    from ..recipe import RECIPE, steps_of_epoch

    config = args.config
    alone = config is None and args.preset is None
    if alone and args.resume is not None:
        path = Path(args.resume)
        config = saved_config(Run.open(path.parent.parent if path.is_file() else path).path)

    def resolved(words: list[str]) -> LiquidSettings:
        return resolve(RECIPE, config, args.preset, [*words, *args.set])

    def steps_per_epoch(words: list[str]) -> int:
        return steps_of_epoch(resolved(words), open_data(resolved(words)))

    first = alone and args.resume is None
    words = overrides(args, reference=first, steps_per_epoch=steps_per_epoch)
    settings = resolved(words)
    check_effect(args, settings)
    return [*words, *args.set], settings
