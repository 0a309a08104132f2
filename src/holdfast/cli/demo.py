"""``holdfast demo``."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from ..errors import UsageError
from ..run import Run
from ..torch_version import require_torch

SCRIPT = "dies_of_nan.py"


class DemoCommand:
    """Run a script that dies of NaN, then the same script under holdfast.

    Runs an ordinary training script twice: with python, and with holdfast run. The script is
    examples/dies_of_nan.py, or a copy of it in runs/ where there is no checkout; it is not
    changed in between.
    """

    name = "demo"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """The folder of the run, nothing else."""
        parser.add_argument(
            "--run-dir", metavar="DIR", help="folder for the run (default: a new one under runs/)"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Run both, show both, say where the report is."""
        require_torch()
        script = find_script()
        if args.run_dir:
            # Not after the first half of the show.
            Run.create(args.run_dir, {"script": SCRIPT}).remove_if_empty()
        shown = os.path.relpath(script)
        _title(f"1. python {shown}")
        plain = _run([sys.executable, str(script)])
        _title(f"2. holdfast run {shown}")
        where = ["--run-dir", args.run_dir] if args.run_dir else []
        guarded = _run([sys.executable, "-m", "holdfast", "run", *where, str(script)])
        _title("What happened")
        print(f"  python        final loss {plain}")
        print(f"  holdfast run  final loss {guarded}")
        which = f" {shlex.quote(args.run_dir)}" if args.run_dir else ""
        print(f"\n  Page with plots:   holdfast open{which}")
        print(f"  Full report:       holdfast report{which}")
        print("  What a code means: holdfast explain NUM001")
        survived = plain == "nan" and guarded not in ("", "nan")
        return 0 if survived else 1


def find_script() -> Path:
    """The example in a checkout, or a copy of the installed one under ``runs/``.

    A copy, because code among the installed packages is a library's: no line of it is named.
    """
    package = Path(__file__).parent.parent
    in_checkout = package.parent.parent / "examples" / SCRIPT
    if in_checkout.is_file():
        return in_checkout
    installed = package / "examples" / SCRIPT
    if not installed.is_file():
        raise UsageError(f"{installed} is missing; reinstall holdfast")
    copy = Path("runs") / SCRIPT
    try:
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(installed, copy)
    except OSError as error:
        raise UsageError(
            f"cannot write {copy} ({error}); go to a folder you may write to"
        ) from error
    return copy


def _run(command: list[str]) -> str:
    """Run a command, pass its output through, and return the final loss it printed."""
    final = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(f"  {line}", end="", flush=True)
            found = re.match(r"final loss (\S+)", line)
            final = found.group(1) if found else final
    return final


def _title(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}", flush=True)
