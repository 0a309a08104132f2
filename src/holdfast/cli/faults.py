"""``holdfast faults``."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..faults import ALL
from ..faults.catalogue import (
    Fault,
    choose,
    find,
    read_faults,
)
from ..faults.running import ProcessEnd, run_guarded, run_plain
from ..report import finding_lines, summarize
from ..run import Run, encode
from ..torch_version import require_torch
from ..types import Finding
from . import _output
from ._parser import add_format, old_name


class FaultsCommand:
    """List and run small training scripts with a known fault.

    There is one script for each detector. run exits with 1 when the first finding
    has another code than the fault, or names another line.

      holdfast faults list --select NUM
      holdfast faults run nonfinite_loss --run-dir out/nan
    """

    name = "faults"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the verbs and their options."""
        verbs = parser.add_subparsers(metavar="VERB", dest="verb", required=True)

        def verb(name: str, what: str, act: Callable[[Any], int]) -> Any:
            one = verbs.add_parser(name, help=what, description=what, allow_abbrev=False)
            add_format(one, "text", "json")
            one.set_defaults(act=act)
            return one

        listing = verb("list", "List the faults with code and reason.", _list)
        listing.add_argument(
            "--select", metavar="CODES", default="", help="names, codes or prefixes, with commas"
        )
        old_name(listing, "--only", "select")
        run = verb("run", "Run one under python and under holdfast, and show the findings.", _run)
        run.add_argument("name", metavar="NAME", help="name of a fault; see list")
        run.add_argument("--run-dir", metavar="DIR", type=Path, help="keep the run folder here")
        old_name(run, "--keep", "run_dir", type=Path)

    def run(self, args: argparse.Namespace) -> int:
        """Run one verb."""
        return args.act(args)


def _list(args: argparse.Namespace) -> int:
    faults = choose(read_faults(ALL), args.select)
    if args.format == "json":
        _output.write(encode([fault.plain() for fault in faults], indent=2).decode() + "\n")
        return 0
    width = max(len(fault.name) for fault in faults)
    for fault in faults:
        _output.write(f"{fault.name.ljust(width)}  {fault.code}  {_short(fault.why)}\n")
    return 0


def _short(text: str, limit: int = 90) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def _run(args: argparse.Namespace) -> int:
    fault = find(read_faults(ALL), args.name)
    if args.run_dir is not None:
        # A folder that already holds a run is refused before anything is run.
        Run.create(args.run_dir, {"script": fault.path.name}).remove_if_empty()
    require_torch()
    plain = run_plain(fault.path)
    with tempfile.TemporaryDirectory() as folder:
        path = args.run_dir or Path(folder) / "run"
        guarded = run_guarded(fault.path, path, given=fault.options)
        # A script that never trains leaves no run folder.
        summary = summarize(Run.open(path)) if path.exists() else None
    findings = summary.findings if summary is not None else ()
    found = _found(fault, findings)
    if args.format == "json":
        data = {
            **fault.plain(),
            "python": vars(plain),
            "holdfast": vars(guarded),
            "found": found,
            "findings": [finding.to_dict() for finding in findings],
        }
        _output.write(encode(data, indent=2).decode() + "\n")
        return int(not found)
    facts = {
        "script": str(fault.path),
        "fault": f"{fault.code} from step {fault.first_step}{_at(fault)}",
        "why": fault.why,
        "python": _ending(plain),
        "holdfast": _ending(guarded),
        "found": "yes" if found else "NO",
        "run": str(args.run_dir or ""),
    }
    lines = [f"  {name.ljust(9)} {text}" for name, text in facts.items() if text]
    _output.write("\n".join([fault.name, *lines]) + "\n")
    for group in summary.finding_groups if summary is not None else ():
        _output.show([(), *finding_lines(group, _output.width())])
    return int(not found)


def _found(fault: Fault, findings: Sequence[Finding]) -> bool:
    """Whether the first finding has the code of the fault, and its line where there is one."""
    if not findings or findings[0].code != fault.code:
        return False
    first = findings[0]
    named = Path(first.file).name == fault.path.name and first.line in fault.lines
    return named or not fault.lines


def _at(fault: Fault) -> str:
    return f" at {fault.path.name}:{fault.lines[0]}" if fault.lines else ""


def _ending(ended: ProcessEnd) -> str:
    how = "took too long" if ended.too_long else f"exit code {ended.exit_code}"
    return f"{how}, {ended.seconds:.1f} s"
