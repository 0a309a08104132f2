"""``holdfast runs``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from ..config import RunSettings
from ..errors import RunFolderError, UsageError
from ..report.layout import Span, line
from ..report.run_list import found_runs, read_row
from ..report.words import plural, size
from ..run import encode
from . import _output
from ._parser import Parser, add_format
from ._pruning import PruneRuns
from ._run_table import newest_checkpoints, plain_row, table

_SHOWN = 20


class RunsCommand:
    """List the runs of a folder: how they ended, steps, verdict, checkpoint, size.

    The newest run comes first. STATUS is finished, crashed, killed, stopped (by holdfast),
    interrupted, running, stalled? (running, but nothing was written for ten minutes), unknown
    (it may run on another machine) or damaged. VERDICT is the code of the worst finding,
    "no findings", or "info only". CHECKPOINT is the newest one.

      holdfast runs                          the runs under runs/
      holdfast runs out --all
      holdfast runs --format json            for programs: all of them
      holdfast runs prune --keep 10          what would go; --yes removes it

    Wherever a command asks for RUN, the name of a run under runs/, the beginning of one, or
    the word last (the newest run) will do: holdfast report last.
    """

    name = "runs"
    raw = True
    verbs = (PruneRuns,)

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the options of the list; ``prune`` has a parser of its own."""
        root = RunSettings().root
        parser.usage = "holdfast runs [ROOT] [options]\n       holdfast runs prune --help"
        parser.add_argument(
            "root", metavar="ROOT", nargs="?", help=f"folder that holds runs (default: {root})"
        )
        parser.add_argument("--all", action="store_true", help=f"all, not the newest {_SHOWN}")
        parser.add_argument(
            "--limit", metavar="N", type=int, help=f"the newest N (default: {_SHOWN}; json: all)"
        )
        add_format(parser, "text", "json")

    def run_raw(self, argv: Sequence[str], parser: argparse.ArgumentParser) -> int:
        """List, or hand over to ``prune``."""
        if argv and argv[0] == PruneRuns.name.split()[-1]:
            prune = PruneRuns()
            return prune.run(Parser.of(prune).parse_args(argv[1:]))
        return self._list(parser.parse_args(argv))

    @staticmethod
    def _list(args: argparse.Namespace) -> int:
        if args.limit is not None and args.limit < 1:
            raise UsageError(f"--limit {args.limit}; write a number of at least 1, or --all")
        if args.root is not None and not os.path.isdir(args.root):
            raise RunFolderError(f"{args.root} is no folder; give the folder that holds runs")
        root = args.root or RunSettings().root
        found = found_runs(root)
        limit = args.limit or (None if args.all or args.format == "json" else _SHOWN)
        rows = [read_row(one) for one in found[:limit]]
        checkpoints = newest_checkpoints(rows)
        if args.format == "json":
            plain = [plain_row(row, checkpoints.get(row.path)) for row in rows]
            _output.write(
                encode({"format": 1, "root": str(root), "runs": plain}, indent=2).decode()
            )
            _output.write("\n")
        elif not found:
            _output.write(f"no runs in {root}; start one with: holdfast run SCRIPT\n")
        else:
            total = f"{plural(len(found), 'run')} in {root}"
            whole = f", {size(sum(row.bytes for row in rows))}"
            again = " ".join(filter(None, ["holdfast runs", args.root, "--all"]))
            more = f"the newest {len(rows)} of {total}; all of them: {again}"
            foot = total + whole if len(rows) == len(found) else more
            reported = table(rows, checkpoints, _output.columns())
            _output.show([*reported, line(Span(foot, "dim"))])
        return 0
