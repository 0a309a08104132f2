"""``holdfast compare``."""

from __future__ import annotations

import argparse

from ..config import RunSettings
from ..errors import UsageError
from ..harmless import visible
from ..report import plain, read_record
from ..report.compare import (
    compare,
    compare_json,
    compare_lines,
    read_limits,
)
from ..report.html import overlay_page
from ..run import Run, find_run
from ..run.durable import replace_file
from . import _output
from ._parser import RUN_HELP, add_format


class CompareCommand:
    """Compare two runs: time, memory, loss, findings.

    A is the reference, B is judged. The exit code is 0 when B is the same or better, 1 when it is
    worse by more than a limit, 2 when a run cannot be read. Step times are compared by their
    medians, and only where they differ by more than their noise; the loss on the last tenth of the
    steps that both have. The limits: step_time, samples_per_second, rss and mem_allocated 10 %,
    loss 5 %, no new findings of warning or worse, and B has to finish if A did.

    Runs of different scripts are shown side by side, and judged only where --fail-on asks for it.

      holdfast compare runs/before runs/after
      holdfast compare last                        with the run of the same script before it
      holdfast compare A B --fail-on step_time=5%,loss=off --fail-on findings=error
      holdfast compare A B --format json
      holdfast compare A B --format html           curves over each other: B/compare.html
    """

    name = "compare"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the options."""
        parser.add_argument("before", metavar="A", help=f"reference, a {RUN_HELP}")
        parser.add_argument(
            "after",
            metavar="B",
            nargs="?",
            help="run to judge; without it A is judged by the run of the same script before it",
        )
        add_format(parser, "text", "json", "html")
        parser.add_argument(
            "--output",
            metavar="FILE",
            help="write to a file instead; html goes to compare.html in the folder of B without it",
        )
        parser.add_argument(
            "--fail-on", metavar="NAME=LIMIT", action="append", default=[],
            help="other limits, with commas: step_time=5%%,data_wait=20%%,loss=off,findings=error",
        )  # fmt: skip

    def run(self, args: argparse.Namespace) -> int:
        """Compare and show."""
        limits = read_limits(args.fail_on) if args.fail_on else None
        root = RunSettings().root
        first = find_run(args.before, root)
        second = first if args.after is None else find_run(args.after, root)
        if args.after is None:
            first = _before(second)
        found = compare(first, second, limits)
        if args.format == "html":
            page = overlay_page(found, read_record(first), read_record(second))
            path = args.output or str(second.overlay_path)
            if args.output:
                _output.save(page, path)
            else:
                # In place of what lies there: a link in a folder from somebody else leads anywhere.
                replace_file(second.overlay_path, visible(page).encode())
            _output.write(f"{path}\n")
        elif args.output:
            made = plain(compare_lines(found)) if args.format == "text" else compare_json(found)
            _output.save(made, args.output)
        elif args.format == "json":
            _output.write(compare_json(found))
        else:
            _output.show(compare_lines(found, _output.width()))
        return int(found.worse)


def _before(run: Run) -> Run:
    """The run of the same script that lies beside it and was made before it."""
    script, runs = run.meta.get("script"), Run.list(run.path.absolute().parent)
    names = [one.path.name for one in runs]
    older = runs[names.index(run.path.name) + 1 :] if run.path.name in names else []
    found = next((one for one in older if one.meta.get("script") == script), None)
    if found is None:
        raise UsageError(
            f"there is no run of {script or 'this script'} before {run.path}; write the run to "
            "compare it with: holdfast compare A B"
        )
    return found
