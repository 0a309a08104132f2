"""Parameter scans of ``holdfast train``: options, and the table for people."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..harmless import visible_line
from ..report.layout import Span, line
from ..run import new_run_path
from . import _output
from ._warning import warn

if TYPE_CHECKING:
    from ..training.scanning import FolderScan


def describe_scan(parser: argparse.ArgumentParser) -> None:
    """The options of a scan."""
    group = parser.add_argument_group("parameter scans")
    group.add_argument(
        "--scan",
        metavar="KEY=V1,V2",
        action="append",
        default=[],
        help="train once for every value of a setting (repeatable: every combination), each in a "
        "process and a folder of its own below --run-dir; called again, it goes on",
    )
    group.add_argument(
        "--jobs", metavar="N", type=int, help="runs of a scan at the same time (default: 1)"
    )
    group.add_argument(
        "--scan-slurm",
        metavar="FILE",
        help="write an sbatch file with one array task for each combination instead of training",
    )
    group.add_argument(
        "--scan-task", metavar="I", type=int, help="train combination I alone, counted from 0"
    )
    group.add_argument("--scan-table", metavar="DIR", help="print the table of a scan, and exit")


def wants_scan(args: argparse.Namespace) -> bool:
    """Whether the command line is about a scan; half a scan is refused."""
    if args.scan or args.scan_table is not None:
        return True
    for option in ("jobs", "scan_slurm", "scan_task"):
        if getattr(args, option) is not None:
            name = option.replace("_", "-")
            raise UsageError(f"--{name} is about a scan; say what with --scan KEY=V1,V2")
    return False


def carry_out_scan(args: argparse.Namespace) -> int:
    """Settle everything that can be wrong, for every combination, then train."""
    from ..training import scanning

    if args.scan_table is not None:
        return _show(scanning.FolderScan.open(Path(args.scan_table)))
    scan = _scan(args)
    if args.scan_task is not None:
        return _task(scan, args.scan_task)
    scan.claim()
    if args.scan_slurm is not None:
        return _slurm(scan, args)
    jobs = 1 if args.jobs is None else args.jobs
    code = scanning.run_scan(scan, jobs, lambda line: _tell(line, quiet=args.quiet))
    _show(scanning.FolderScan.open(scan.folder))
    if code == 130:
        _tell(f"interrupted; the same command with --run-dir {scan.folder} goes on")
    return code


def _scan(args: argparse.Namespace) -> FolderScan:
    from ..training.recipes import find_recipe, resolve
    from ..training.scanning import FolderScan, axes_of, combinations_of

    for option in ("resume", "print_config", "find_batch"):
        if getattr(args, option):
            raise UsageError(f"--{option.replace('_', '-')} is about one run; leave --scan out")
    if args.jobs is not None and args.jobs < 1:
        raise UsageError(f"--jobs {args.jobs}: there has to be at least one")
    if "RANK" in os.environ:
        raise UsageError("--scan starts processes of its own; call it without torchrun")
    if args.recipe is None:
        raise UsageError("no recipe was given; list them: holdfast train --list")
    recipe = find_recipe(args.recipe, _tell)
    combinations = combinations_of(axes_of(args.scan))
    settings, *_ = [
        resolve(recipe, args.config, args.preset, [*args.set, *one.overrides], args.platform)
        for one in combinations
    ]
    if args.run_dir is None:
        root = settings.train.holdfast.run.root
        folder = new_run_path(root, f"{recipe.name}-scan", datetime.now().astimezone())
    else:
        folder = Path(args.run_dir)
    stop = settings.train.stop
    return FolderScan(
        folder=folder,
        recipe=args.recipe,
        arguments=_shared(args),
        combinations=combinations,
        metric=stop.metric,
        mode=stop.mode,
    )


def _shared(args: argparse.Namespace) -> list[str]:
    """What every run of the scan is called with."""
    words: list[str] = []
    for option in ("config", "preset"):
        value = getattr(args, option)
        words += [] if value is None else [f"--{option}", value]
    words += [] if args.platform == "auto" else ["--platform", args.platform]
    return [*words, *(word for text in args.set for word in ("--set", text))]


def _task(scan: FolderScan, number: int) -> int:
    """Become the run of one combination: signals of a cluster reach it without us."""
    if not 0 <= number < len(scan.combinations):
        raise UsageError(
            f"--scan-task {number}: there are combinations 0 to {len(scan.combinations) - 1}"
        )
    one = scan.combinations[number]
    state = scan.state(one)
    if state in ("finished", "stopped", "running"):
        _tell(f"{one.name} is {state}")
        return 0
    scan.folder.mkdir(parents=True, exist_ok=True)
    words = scan.prepare(one)
    sys.stdout.flush()
    os.execv(words[0], words)


def _slurm(scan: FolderScan, args: argparse.Namespace) -> int:
    from ..training.scanning import slurm_script

    words = [scan.recipe, *scan.arguments]
    words += [word for text in args.scan for word in ("--scan", text)]
    words += ["--run-dir", str(scan.folder.resolve())]
    try:
        Path(args.scan_slurm).write_text(slurm_script(scan, words, args.jobs), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write {args.scan_slurm}: {error.strerror}; choose another file"
        ) from error
    _output.write(
        f"{len(scan.combinations)} combinations; submit them with: "
        f"sbatch {shlex.quote(args.scan_slurm)}\n"
        "and look at the results with: holdfast train --scan-table "
        f"{shlex.quote(str(scan.folder))}\n"
    )
    return 0


def _show(scan: FolderScan) -> int:
    """Print the table, best first."""
    rows = scan.write()
    keys = list(scan.combinations[0].values)
    head = [key.removeprefix("train.") for key in keys]
    head += [f"best {scan.metric}", "at step", "steps", "seconds", "skipped", "end"]
    texts: list[list[str]] = []
    for row in rows:
        numbers = (str(row["best_step"] or "-"), str(row["steps"]), f"{row['seconds']:.1f}")
        cells = (_figure(row["best"]), *numbers, str(row["skipped"]), row["why"])
        texts.append([visible_line(str(text)) for text in (*(row[key] for key in keys), *cells)])
    widths = [max(map(len, column)) for column in zip(head, *texts, strict=True)]
    lines = [line(str(scan.folder)), line(Span(_in_columns(head, widths, len(keys)), "bold"))]
    _output.show([*lines, *(line(_in_columns(one, widths, len(keys))) for one in texts)])
    return 0


def _in_columns(texts: Sequence[str], widths: Sequence[int], values: int) -> str:
    """A row of the table: values of settings and the end to the left, numbers to the right."""
    cells = [
        text.rjust(width) if values <= i < len(texts) - 1 else text.ljust(width)
        for i, (text, width) in enumerate(zip(texts, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _figure(value: Any) -> str:
    return "-" if math.isnan(float(value)) else f"{float(value):.4g}"


def _tell(line: str, *, quiet: bool = False) -> None:
    if not quiet:
        warn(line)
