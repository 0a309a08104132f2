"""``holdfast run``."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Sequence
from typing import NoReturn

from .. import config
from ..boot import unguarded
from ..config.rules import EVERY
from ..errors import UnwritableFolderError, UsageError
from ..launcher.command import ScriptCommand, read_command
from ._call import check_call
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

    Put it in front of the command that you use anyway. Everything after our options belongs to that
    command: its arguments, standard streams, signals and exit code are its own. Under a launcher
    holdfast enters the ranks. If python cannot be entered (older than 3.11, without torch, -I, -E,
    -S), a line says that the run is unguarded, and the command goes on.

      holdfast run train.py --epochs 3
      holdfast run python -u train.py --epochs 3
      holdfast run python3.11 -X dev -m mypackage.train
      holdfast run torchrun --nproc-per-node 2 train.py
      holdfast run accelerate launch train.py
      holdfast run deepspeed train.py
      holdfast run uv run train.py
      holdfast run poetry run python train.py
      holdfast run ./train            a script with a #! line
      holdfast run -m mypackage.train
      holdfast run -c 'import mypackage'
      holdfast run - < train.py
      holdfast run --run-dir out/first -- train.py
      holdfast run --on OPT001=observe --health train.py
      holdfast run --resume auto train.py --epochs 3
      torchrun --nproc-per-node 2 -m holdfast run train.py

    A run that crashes, is interrupted or is ended by SIGTERM leaves the state after its last
    complete step in the folder of the run (--set checkpoint.at_end=false switches that off). With
    --restart it is started again from its last periodic checkpoint; one that hangs is told with the
    line it stands at.
    """

    name = "run"
    raw = True
    hands_over = True

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the options; what follows the script is never parsed."""
        parser.usage = "holdfast run [options] [--] COMMAND [arguments of the command]"
        parser.add_argument(
            "--run-dir", metavar="DIR", help="folder for this run (default: a new one under runs/)"
        )
        parser.add_argument(
            "--resume",
            metavar="RUN|auto",
            help="go on from the last checkpoint of an earlier run of the same script and "
            "arguments, bit for bit on a CPU, or say why that cannot be; auto: from the newest "
            "such run, anew if there is none",
        )
        parser.add_argument(
            "--no-fused",
            action="store_true",
            help="keep optimizers as the script made them, and torch's own way to its kernels: no "
            "fused or foreach form, no short way through step, backward and clipping",
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
            "-v",
            "--verbose",
            action="store_true",
            help="also print the policy and what is changed about optimizers",
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
            "command",
            metavar="COMMAND",
            nargs="?",
            help="a script, -m MODULE, -c CODE, - (standard input), python, torchrun, accelerate "
            "launch, deepspeed, uv run, poetry run, or an executable with a #! line",
        )

    def run_raw(self, argv: Sequence[str], parser: argparse.ArgumentParser) -> int:
        """Split our options from the command, check it, hand over to the supervisor."""
        ours, command = split(argv)
        args = parser.parse_args(ours)
        if args.show_policy:
            return self._show_policy(config.load(args.config, overrides_of(args)))
        if not command or not command[0]:
            raise UsageError(
                "nothing to run: no script was given; try `holdfast run train.py`, or put "
                "`holdfast run` in front of your own command"
            )
        settings = config.load(args.config, overrides_of(args))
        check_codes(settings)
        settings = _with_options(settings)
        from ..launcher.interpreter import keeps_out

        read = read_command(command)
        if settings.restart.times and (read.several or os.environ.get("WORLD_SIZE", "1") != "1"):
            raise UsageError(
                "--restart starts one process again, not one of several ranks; leave it to their "
                "launcher: torchrun --max-restarts"
            )
        out = keeps_out(read)
        if out is not None and args.resume is not None:
            # It would begin at step 0, over its outputs.
            raise UsageError(f"--resume needs a guarded run: {'; '.join(out)}")
        if out is not None:
            return self._run_unguarded(read, unguarded(*out))
        check_call(read)
        return self._run_guarded(read, settings, args.resume)

    @staticmethod
    def _run_guarded(command: ScriptCommand, settings: config.Settings, resume: str | None) -> int:
        from ..launcher.start import start_run
        from ..launcher.supervisor import finish, leave_like, say, supervise
        from ..launcher.tracking import Follower

        main = os.environ.get("RANK", "0") == "0"
        point = None
        if resume is not None:
            from . import _resume

            point = _resume.find(resume, settings, command, say)
            if point is not None:
                say(f"holdfast: goes on from {point['run']} after step {point['step']}")
        try:
            run = start_run(
                settings, command.name, command.words, point, source=command.source,
                started_by="holdfast run",
            )  # fmt: skip
        except UnwritableFolderError as error:
            if point is not None or settings.restart.times:
                raise  # both live from what a run saves
            if main:
                say(f"holdfast: this run cannot be recorded or saved, but it is guarded: {error}")
            return leave_like(supervise(command.argv, None, settings).status)
        follower = Follower.start(run.path, settings, say) if main else None
        try:
            if settings.restart.times:
                from ..launcher.restart import run_to_the_end

                status = run_to_the_end(command.argv, run, settings)
            else:
                status = supervise(command.argv, run, settings).status
        except UsageError:
            run.remove_if_empty()
            raise
        finish(run, status, quiet=settings.run.quiet, main=main)
        if command.launcher and status == 0 and not run.path.exists():
            started = f"no python that {command.launcher} started trained under holdfast"
            say(
                f"holdfast: nothing was recorded: {started}; if one did train, holdfast was kept "
                "out of it (-I, -E, -S, a cleared environment): write `holdfast run` in front of it"
            )
        if follower is not None:
            follower.end()
        return leave_like(status)

    @staticmethod
    def _run_unguarded(command: ScriptCommand, line: str) -> NoReturn:
        """Become the command: its streams, signals and exit code are as without us."""
        from ..launcher.supervisor import say

        say(line)
        try:
            os.execvp(command.argv[0], command.argv)
        except OSError as error:
            raise UsageError(f"cannot start {command.argv[0]}: {error.strerror}") from error

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
            import difflib

            near = difflib.get_close_matches(name, codes, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "`holdfast explain` lists all of them"
            raise UsageError(f"policy.{name}: no detector has this code; {hint}")


def _with_options(settings: config.Settings) -> config.Settings:
    if not settings.detectors.options:
        return settings
    from ..detectors import ALL, load_plugins
    from ..detectors.options import with_options

    return with_options(settings, (*ALL, *load_plugins(os.environ, ALL).detectors))


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our options, and the command that follows them.

    >>> split(["--quiet", "train.py", "--quiet", "-m"])
    (['--quiet'], ['train.py', '--quiet', '-m'])
    >>> split(["--run-dir", "out", "-m", "pkg.train", "x"])
    (['--run-dir', 'out'], ['-m', 'pkg.train', 'x'])
    >>> split(["-v", "train.py"])
    (['-v'], ['train.py'])
    >>> split(["--health", "train.py", "3"]), split(["--health", "20", "train.py"])
    ((['--health'], ['train.py', '3']), (['--health', '20'], ['train.py']))
    """
    i = 0
    while i < len(argv):
        word = argv[i]
        if word == "--":
            return list(argv[:i]), list(argv[i + 1 :])
        if word in ("-m", "-c", "-") or not word.startswith("-"):
            return list(argv[:i]), list(argv[i:])
        if not word.startswith("--") and word not in ("-h", "-v"):
            better = f"holdfast run python {shlex.join(argv[i:])}"
            raise UsageError(f"{word} is an option of python; write `{better}`")
        number = word in MAY_TAKE_NUMBER and "".join(argv[i + 1 : i + 2]).isdigit()
        i += 2 if number or word in TAKES_VALUE else 1
    return list(argv), []
