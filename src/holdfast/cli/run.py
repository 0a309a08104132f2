"""``holdfast run``."""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib.util
import os
import sys
import tokenize
import zipfile
from collections.abc import Sequence
from pathlib import Path

from .. import config
from ..config.rules import EVERY
from ..errors import UsageError
from ._run_flags import (
    HEALTH,
    MAY_TAKE_NUMBER,
    TAKES_VALUE,
    TRACK,
    describe_rescue,
    overrides_of,
)


class RunCommand:
    """Run any PyTorch script unmodified and guarded.

    Everything after SCRIPT, or after the module name, belongs to the script. Its arguments,
    standard streams, signals and exit code are its own. A run that crashes, is interrupted or
    is ended by SIGTERM leaves the state after its last complete step in the folder of the run
    (--set checkpoint.at_end=false switches that off).

      holdfast run train.py --epochs 3
      holdfast run --run-dir out/first -m mypackage.train
      holdfast run --on OPT001=observe --health train.py
      torchrun --nproc-per-node 2 -m holdfast run train.py
    """

    name = "run"
    raw = True

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the options; what follows the script is never parsed."""
        parser.usage = "holdfast run [options] SCRIPT|-m MODULE [arguments of the script]"
        parser.add_argument(
            "--run-dir", metavar="DIR", help="folder for this run (default: a new one under runs/)"
        )
        parser.add_argument(
            "--no-fused",
            action="store_true",
            help="keep optimizers as the script made them: no fused or foreach kernels",
        )
        parser.add_argument(
            "--no-replay",
            action="store_true",
            help="never feed a bad batch through the loop again to find the line",
        )
        describe_rescue(parser)
        parser.add_argument(
            "--quiet",
            action="store_true",
            help="no live lines and no summary; the run folder has everything",
        )
        parser.add_argument(
            "--health",
            metavar="N",
            nargs="?",
            const=str(HEALTH),
            help=f"a line every N steps: loss, gradient norm, steps/s (default N: {HEALTH})",
        )
        parser.add_argument("--track", **TRACK)
        parser.add_argument("--config", metavar="FILE", help="settings as YAML")
        parser.add_argument(
            "--set",
            metavar="KEY=VALUE",
            action="append",
            default=[],
            help="one setting, e.g. guard.restore_rng=false (repeatable)",
        )
        parser.add_argument(
            "-m", metavar="MODULE", dest="module", help="run a module as a script, like python -m"
        )
        parser.add_argument("script", metavar="SCRIPT", nargs="?", help="the script to run")

    def run_raw(self, argv: Sequence[str], parser: argparse.ArgumentParser) -> int:
        """Split our options from the script's, check the script, hand over to the supervisor."""
        ours, command = split(argv)
        args = parser.parse_args(ours)
        if args.show_policy:
            return self._show_policy(config.load(args.config, overrides_of(args)))
        if not command:
            raise UsageError(
                "nothing to run: no script was given; try `holdfast run train.py` "
                "or `holdfast run -m package.module`"
            )
        settings = config.load(args.config, overrides_of(args))
        check_codes(settings)
        if command[0] == "-m":
            check_module(command[1:2])
            name = command[1].replace(".", "_")
        else:
            check_script(Path(command[0]))
            name = Path(command[0]).name
        from ..launcher.start import start_run
        from ..launcher.supervisor import finish, leave_like, say, supervise
        from ..launcher.tracking import Follower
        from ..torch_version import check_torch

        check_torch()
        run = start_run(settings, name, command)
        main = os.environ.get("RANK", "0") == "0"
        follower = Follower.start(run.path, settings, say) if main else None
        status = supervise(command, run, settings)
        finish(run, status, quiet=settings.run.quiet, main=main)
        if follower is not None:
            follower.end()
        return leave_like(status)

    @staticmethod
    def _show_policy(settings: config.Settings) -> int:
        from ..policy import Policy

        print("\n".join(Policy.of(settings).lines()))
        return 0


def check_codes(settings: config.Settings) -> None:
    """Refuse a policy about a code that no detector has, ours or a plugin's: mostly a typo."""
    named = [name for name in settings.policy if name != EVERY]
    if not named:
        return
    from ..detectors import ALL, load_plugins

    codes = [d.code for d in (*ALL, *load_plugins(os.environ, ALL).detectors)]
    for name in named:
        if not any(code.startswith(name) for code in codes):
            near = difflib.get_close_matches(name, codes, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "`holdfast explain` lists all of them"
            raise UsageError(f"policy.{name}: no detector has this code; {hint}")


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our options, and the command that follows them.

    >>> split(["--quiet", "train.py", "--quiet", "-m"])
    (['--quiet'], ['train.py', '--quiet', '-m'])
    >>> split(["--run-dir", "out", "-m", "pkg.train", "x"])
    (['--run-dir', 'out'], ['-m', 'pkg.train', 'x'])
    >>> split(["--health", "train.py", "3"]), split(["--health", "20", "train.py"])
    ((['--health'], ['train.py', '3']), (['--health', '20'], ['train.py']))
    """
    i = 0
    while i < len(argv):
        word = argv[i]
        if word == "--":
            return list(argv[:i]), list(argv[i + 1 :])
        if word == "-m" or not word.startswith("-") or word == "-":
            return list(argv[:i]), list(argv[i:])
        number = word in MAY_TAKE_NUMBER and "".join(argv[i + 1 : i + 2]).isdigit()
        i += 2 if number or word in TAKES_VALUE else 1
    return list(argv), []


def check_script(path: Path) -> None:
    """Check the script: one clear line where python would print a traceback, or worse, run it."""
    try:
        _check_script(path)
    except OSError as error:
        name = str(path) if len(str(path)) < 200 else f"{str(path)[:80]}…"
        raise UsageError(
            f"cannot read {name}: {error.strerror}; check its name and its permissions"
        ) from error


def _check_script(path: Path) -> None:
    if path.is_dir():
        if not (path / "__main__.py").is_file():
            raise UsageError(f"{path} is a folder without a __main__.py; name the script in it")
        return
    if not path.exists():
        near = _nearest(path)
        hint = f"did you mean {near}?" if near else "check the path and the working directory"
        raise UsageError(f"no such script: {path}; {hint}")
    try:
        if zipfile.is_zipfile(path):
            return
        with tokenize.open(path) as file:
            ast.parse(file.read(), filename=str(path))
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        raise UsageError(
            f"{path} is not Python: {where}{error.msg}; holdfast run needs a Python script"
        ) from error
    except (UnicodeDecodeError, ValueError) as error:
        raise UsageError(
            f"{path} is not Python: it is not text; holdfast run needs a Python script"
        ) from error


def check_module(names: Sequence[str]) -> None:
    """Only the top package is looked up: finding a submodule would import its parents here."""
    if not names:
        raise UsageError("-m needs a module name; try `holdfast run -m package.module`")
    top = names[0].partition(".")[0]
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        found = None
    finally:
        sys.path.remove(os.getcwd())
    if found is None:
        raise UsageError(
            f"no module named {top!r}; check the name, the working directory "
            "and the environment holdfast is installed in"
        )


def _nearest(path: Path) -> str:
    import difflib

    try:
        names = [p.name for p in path.parent.iterdir() if p.suffix == ".py"]
    except OSError:
        return ""
    close = difflib.get_close_matches(path.name, names, n=1)
    return str(path.with_name(close[0])) if close else ""
