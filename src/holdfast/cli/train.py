"""``holdfast train``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import RunFolderError, UsageError
from ..run import Run
from . import _output

if TYPE_CHECKING:
    from ..training.recipes import Recipe

_SPACE = 14


class TrainCommand:
    """Train a recipe: a model, its data and its settings under one name.

    RECIPE is a name from --list, path/to/file.py:NAME or package.module:NAME. Settings come
    from the recipe's defaults, then the platform, the preset, the file and --set; each overrides
    those before it. --resume continues an interrupted run exactly.

      holdfast train demo
      holdfast train demo --set train.optimizer.lr=1e-3 --set train.steps=500
      holdfast train demo --set train.log.channels=memory,performance
      holdfast train demo --preset NAME --print-config > mine.yaml
      holdfast train demo --config mine.yaml --run-dir out/first
      holdfast train demo --resume out/first
      torchrun --nproc-per-node 2 -m holdfast train demo
    """

    name = "train"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the options."""
        parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="what to train")
        parser.add_argument("--config", metavar="FILE", help="settings as YAML")
        parser.add_argument("--preset", metavar="NAME", help="settings of the recipe's own")
        parser.add_argument(
            "--set",
            metavar="KEY=VALUE",
            action="append",
            default=[],
            help="one setting, e.g. train.data.batch=64 (repeatable)",
        )
        parser.add_argument(
            "--run-dir", metavar="DIR", help="folder for this run (default: a new one under runs/)"
        )
        parser.add_argument(
            "--resume",
            metavar="RUN",
            nargs="?",
            const=True,
            help="continue from the newest good checkpoint of RUN, or of --run-dir, with the "
            "settings of that run; --config and --preset replace them, --set changes them",
        )
        parser.add_argument(
            "--platform",
            metavar="NAME",
            default="auto",
            help="settings for a kind of machine: auto, arm, cuda, cpu, none (default: auto)",
        )
        parser.add_argument("--quiet", action="store_true", help="no progress, no live lines")
        parser.add_argument(
            "--print-config",
            action="store_true",
            help="print every setting as YAML that --config reads, and exit",
        )
        parser.add_argument(
            "--find-batch",
            action="store_true",
            help="measure which batch sizes fit and which is fastest, and exit",
        )
        parser.add_argument(
            "--list", action="store_true", help="list the recipes and their presets, and exit"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Settle everything that can be wrong, then train."""
        from ..torch_version import check_torch

        check_torch()
        if args.list:
            return _list()
        if args.recipe is None:
            eaten = isinstance(args.resume, str) and not os.path.exists(args.resume)
            raise UsageError(
                f"no recipe was given; RUN follows --resume: holdfast train {args.resume} --resume"
                if eaten
                else "no recipe was given; list them: holdfast train --list"
            )
        from ..training.recipes import find_recipe, resolve, to_yaml

        recipe = find_recipe(args.recipe, _tell)
        run_dir, resume, config = _places(args)
        settings = resolve(recipe, config, args.preset, args.set, args.platform)
        if args.print_config:
            _output.write(to_yaml(settings))
            return 0
        if args.find_batch:
            from ..training.recipe_run import find_recipe_batch

            return find_recipe_batch(recipe, settings)
        if not args.quiet:
            _tell_choices(args, config, resume, settings)
        return _train(recipe, settings, run_dir, resume, args.quiet)


def _train(recipe: Recipe, settings: Any, run_dir: str | None, resume: Any, quiet: bool) -> int:
    if run_dir is not None and resume is None and "RANK" not in os.environ:
        # Said before a model is built. With several ranks another may have made it just now.
        Run.create(run_dir, {"script": recipe.name}).remove_if_empty()
    from ..training.recipe_run import run_recipe

    return run_recipe(recipe, settings, run_dir=run_dir, resume=resume, quiet=quiet)


def _places(args: argparse.Namespace) -> tuple[str | None, bool | str | None, str | None]:
    """The folder of the run, what it goes on from, and the file with its settings."""
    if args.resume is None:
        return args.run_dir, None, args.config
    from ..training.recipes import former_run, saved_config

    if args.resume is True and args.run_dir is None:
        raise UsageError("--resume does not say which run; write --resume RUN or add --run-dir DIR")
    source: str = args.run_dir if args.resume is True else args.resume
    given = args.config is not None or args.preset is not None
    try:
        former = former_run(source)
    except RunFolderError:
        # Checkpoints that lie by themselves are enough where the settings come from elsewhere.
        if not given or args.resume is True or not os.path.exists(source):
            raise
        return args.run_dir, source, args.config
    config = args.config if given else saved_config(former)
    run_dir = args.run_dir or str(former)
    whole = Path(source).resolve() == former.resolve() == Path(run_dir).resolve()
    return run_dir, True if whole else source, config


def _tell_choices(args: argparse.Namespace, config: str | None, resume: Any, settings: Any) -> None:
    from ..training import platforms

    if resume is not None and config is not None and config != args.config:
        changed = f", changed by {' '.join(args.set)}" if args.set else ""
        _tell(f"settings of the previous run, {config}{changed}")
    platform = platforms.named(args.platform)
    for suggestion, line in zip(platform.suggestions, platform.lines(), strict=True):
        value = settings
        for name in suggestion.key.split("."):
            value = getattr(value, name, None)
        if str(value) == suggestion.value:
            _tell(line)


def _list() -> int:
    from ..training.recipes import known_recipes

    offers, warnings = known_recipes()
    for warning in warnings:
        _tell(warning)
    lines: list[str] = []
    for offer in offers:
        recipe: Recipe = offer.value
        origin = "" if offer.source == "holdfast" else f"  [{offer.source}]"
        summary = recipe.summary.strip().partition("\n")[0]
        lines.append(f"{f'{recipe.name} '.ljust(_SPACE)}{summary}{origin}")
        if recipe.presets:
            lines.append(f"{''.ljust(_SPACE)}presets: {', '.join(recipe.presets)}")
    _output.write("".join(f"{line}\n" for line in lines))
    return 0


def _tell(line: str) -> None:
    """One line on standard error, from one process of several."""
    if os.environ.get("RANK", "0") == "0":
        print(f"holdfast: {line}", file=sys.stderr)
