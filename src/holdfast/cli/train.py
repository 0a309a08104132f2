"""``holdfast train``."""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import RunFolderError, UsageError
from ..run import Run, run_path
from ..run.names import NEWEST
from . import _output
from ._run_flags import TRACK
from ._scan import carry_out_scan, describe_scan, wants_scan
from ._warning import warn

if TYPE_CHECKING:
    from ..training.recipes import Recipe

_SPACE = 14
_SHOWN = 8  # changed settings that a line names
_BEST = "best"
_AUTO = "auto"


class TrainCommand:
    """Train a recipe: a model, its data and its settings under one name.

    RECIPE is a name from --list, path/to/file.py:NAME or package.module:NAME. Settings come
    from the recipe's defaults, then the platform, the preset, the file and --set; each overrides
    those before it. --resume continues an interrupted run exactly; a setting that its state
    does not fit is refused by name, others may change.

      holdfast train demo
      holdfast train demo --set train.optimizer.lr=1e-3 --set train.steps=500
      holdfast train demo --set train.log.channels=memory,performance
      holdfast train demo --set train.graph=true          # a GPU: passes as CUDA graphs
      holdfast train demo --preset NAME --print-config > mine.yaml
      holdfast train demo --config mine.yaml --run-dir out/first
      holdfast train demo --track mlflow --track tensorboard
      holdfast train demo --resume out/first
      holdfast train demo --resume out/first@best --set train.optimizer.lr=1e-4
      holdfast train demo --scan train.optimizer.lr=1e-3,3e-3 --scan model.hidden=64,128
      torchrun --nproc-per-node 2 -m holdfast train demo
    """

    name = "train"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the options."""
        parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="what to train")
        parser.add_argument("--config", metavar="FILE", help="settings as YAML")
        parser.add_argument(
            "--lenient",
            action="store_true",
            help="warn of unknown settings in --config instead of refusing them",
        )
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
            help="continue from the newest good checkpoint of RUN (its folder, its name or the "
            "beginning of it), or of --run-dir, with the settings of that run; --config and "
            "--preset replace them, --set changes them. RUN@best: from its best checkpoint by "
            "validation, in a new folder. last or latest: the newest run of this recipe in the "
            "runs folder; best: last@best; auto: that of --run-dir if there is one, else a new run",
        )
        parser.add_argument(
            "--platform",
            metavar="NAME",
            default="auto",
            help="settings for a kind of machine: auto, gh200, h200, h100, a100, arm, cuda, cpu, "
            "shared, none, or one of the recipe's own (default: auto)",
        )
        parser.add_argument("--track", **TRACK)
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
        describe_scan(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Settle everything that can be wrong, then train."""
        from ..torch_version import require_torch

        require_torch()
        if args.list:
            return _list()
        if args.track:
            args.set.insert(0, f"train.holdfast.track.to={','.join(args.track)}")
        if wants_scan(args):
            return carry_out_scan(args)
        if args.recipe is None:
            eaten = isinstance(args.resume, str) and not os.path.exists(args.resume)
            raise UsageError(
                f"no recipe was given; RUN follows --resume: holdfast train {args.resume} --resume"
                if eaten
                else "no recipe was given; list them: holdfast train --list"
            )
        from ..training.recipes import find_recipe, resolve, to_yaml

        recipe = find_recipe(args.recipe, _tell)
        start = _start(args, recipe)
        settings = resolve(
            recipe,
            start.config,
            args.preset,
            args.set,
            args.platform,
            lenient=args.lenient,
            say=_tell,
        )
        machine = _platform(recipe, args.platform, settings)
        if args.print_config:
            _output.write(f"# {machine}\n")
            _output.write(to_yaml(settings))
            return 0
        if args.find_batch:
            from ..training.recipe_run import find_recipe_batch

            return find_recipe_batch(recipe, settings)
        _check_resume(args, recipe, start, settings)
        if not args.quiet and machine.partition(":")[2]:
            _tell(machine)
        return _train(recipe, settings, start, args.quiet)


def _train(recipe: Recipe, settings: Any, start: _Start, quiet: bool) -> int:
    if start.run_dir is not None and start.resume is None and "RANK" not in os.environ:
        # Said before a model is built. With several ranks another may have made it just now.
        Run.create(start.run_dir, {"script": recipe.name}).remove_if_empty()
    from ..training.recipe_run import run_recipe

    return run_recipe(recipe, settings, run_dir=start.run_dir, resume=start.resume, quiet=quiet)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Start:
    """Where a run goes, what it goes on from, and the file with its settings."""

    run_dir: str | None
    config: str | None
    resume: bool | str | Path | None = None
    former: Path | None = None
    """The run that is resumed, where there is one."""
    choice: str = ""
    """What to say about the checkpoint that was chosen."""


def _start(args: argparse.Namespace, recipe: Recipe) -> _Start:
    if args.resume is None:
        return _Start(run_dir=args.run_dir, config=args.config)
    if args.resume == _AUTO:
        return _automatic(args, recipe)
    from ..training.recipes import former_run, saved_config
    from ..training.resuming import check_recipe

    if args.resume is True and args.run_dir is None:
        raise UsageError(
            "--resume does not say which run; write --resume RUN, --resume latest or add "
            "--run-dir DIR"
        )
    given = args.config is not None or args.preset is not None
    source, best = _source(args, recipe)
    try:
        former = former_run(source)
    except RunFolderError:
        # Checkpoints that lie by themselves are enough where the settings come from elsewhere.
        if not given or args.resume is True or not os.path.exists(source) or best:
            raise
        return _Start(run_dir=args.run_dir, config=args.config, resume=source)
    check_recipe(recipe, former)
    config = args.config if given else saved_config(former)
    if best:
        return _from_best(args, config, former)
    run_dir = args.run_dir or str(former)
    whole = Path(source).resolve() == former.resolve() == Path(run_dir).resolve()
    resume = True if whole else source
    return _Start(run_dir=run_dir, config=config, resume=resume, former=former)


def _automatic(args: argparse.Namespace, recipe: Recipe) -> _Start:
    """The same command for the first start and for every one after it, as a scheduler gives it."""
    from ..training.recipes import CONFIG
    from ..training.resuming import check_recipe

    if args.run_dir is None:
        raise UsageError("--resume auto does not say which run; add --run-dir DIR")
    try:
        former = Run.open(args.run_dir).path
    except RunFolderError:
        return _Start(run_dir=args.run_dir, config=args.config, resume=_AUTO)
    check_recipe(recipe, former)
    given = args.config is not None or args.preset is not None
    # A run that was ended before its first step has left no settings.
    saved = None if given or not (former / CONFIG).is_file() else str(former / CONFIG)
    config = args.config or saved
    return _Start(run_dir=args.run_dir, config=config, resume=_AUTO, former=former)


def _source(args: argparse.Namespace, recipe: Recipe) -> tuple[str, bool]:
    """The path that --resume means, and whether its best checkpoint is meant."""
    word = args.run_dir if args.resume is True else args.resume
    if os.path.exists(word) and word not in (*NEWEST, _BEST):
        return word, False
    best = word == _BEST or word.endswith(f"@{_BEST}")
    word = NEWEST[0] if word == _BEST else word.removesuffix(f"@{_BEST}")
    if args.resume is True or (os.path.exists(word) and word not in NEWEST):
        return word, best
    from ..training.recipes import resolve
    from ..training.resuming import newest_run

    settings = resolve(
        recipe,
        args.config,
        args.preset,
        args.set,
        args.platform,
        lenient=args.lenient,
        say=lambda line: None,  # said when the run is resumed
    )
    root: str = settings.train.holdfast.run.root
    return str(newest_run(recipe, root) if word in NEWEST else run_path(word, root)), best


def _from_best(args: argparse.Namespace, config: str | None, former: Path) -> _Start:
    """The best checkpoint of a run; its later ones stay what they are, in their own folder."""
    from ..training.resuming import best_checkpoint

    if args.run_dir is not None and Path(args.run_dir).resolve() == former.resolve():
        raise UsageError(
            f"{former} goes on beyond its best checkpoint; leave --run-dir out or name a new folder"
        )
    entry = best_checkpoint(former, int(os.environ.get("RANK", "0")))
    where = args.run_dir or "a new folder"
    return _Start(
        run_dir=args.run_dir,
        config=config,
        resume=entry.path,
        former=former,
        choice=f"the best checkpoint of {former} is that of step {entry.step}; going on in {where}",
    )


def _check_resume(args: argparse.Namespace, recipe: Recipe, start: _Start, settings: Any) -> None:
    """Refuse settings that the saved state does not fit, and say what else has changed."""
    if start.former is None:
        return
    from ..training.resuming import compare_with_run

    found, why_not = compare_with_run(recipe, settings, start.former)
    if args.quiet:
        return
    if start.choice:
        _tell(start.choice)
    if why_not:
        _tell(f"the settings were not compared with those of the run: {why_not}")
    own = start.config is not None and start.config != args.config
    if own or found:
        head = f"settings of the previous run, {start.config}" if own else "settings of your own"
        shown = [one.change for one in found[:_SHOWN]]
        more = [f"{len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        _tell(f"{head}, changed: {', '.join([*shown, *more])}" if found else head)
    for one in found:
        if one.level == "warning":
            _tell(one.line)


def _platform(recipe: Recipe, name: str, settings: Any) -> str:
    """The kind of machine, and what it sets, in one line."""
    from ..training import platforms
    from ..training.recipes import in_force

    found = [f"{one.key}={one.value} ({one.why})" for one in in_force(recipe, name, settings)]
    kind = platforms.named(name, recipe.platforms).name
    return f"platform {kind}{': ' if found else ''}{', '.join(found)}"


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
        if recipe.platforms:
            lines.append(f"{''.ljust(_SPACE)}platforms: {', '.join(recipe.platforms)}")
        if recipe.presets:
            lines.append(f"{''.ljust(_SPACE)}presets: {', '.join(recipe.presets)}")
    _output.write("".join(f"{line}\n" for line in lines))
    return 0


def _tell(line: str) -> None:
    """One line on standard error, from one process of several."""
    if os.environ.get("RANK", "0") == "0":
        warn(line)
