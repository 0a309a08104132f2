"""``holdfast compare``."""

from __future__ import annotations

import argparse

from ..config import RunSettings
from ..report import plain, read_record
from ..report.compare import (
    compare,
    compare_json,
    compare_lines,
    read_limits,
)
from ..report.html import overlay_page
from ..run import find_run
from . import _output
from ._parser import RUN_HELP, add_format


class CompareCommand:
    """Compare two runs: time, memory, loss, findings.

    A is the reference, B is judged. The exit code is 0 when B is the same or better, 1 when it is
    worse by more than a limit, 2 when a run cannot be read. Step times are compared by their
    medians, and only where they differ by more than their noise; the loss on the last tenth of the
    steps that both have. The limits: step_time, samples_per_second, rss and mem_allocated 10 %,
    loss 5 %, no new findings of warning or worse, and B has to finish if A did.

      holdfast compare runs/before runs/after
      holdfast compare A B --fail-on step_time=5%,loss=off --fail-on findings=error
      holdfast compare A B --format json
      holdfast compare A B --format html           curves over each other: B/compare.html
    """

    name = "compare"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the options."""
        parser.add_argument("before", metavar="A", help=f"reference, a {RUN_HELP}")
        parser.add_argument("after", metavar="B", help="run to judge")
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
        limits = read_limits(args.fail_on)
        first, second = (find_run(word, RunSettings().root) for word in (args.before, args.after))
        found = compare(first, second, limits)
        if args.format == "html":
            page = overlay_page(found, read_record(first), read_record(second))
            path = args.output or str(second.overlay_path)
            _output.save(page, path)
            _output.write(f"{path}\n")
        elif args.output:
            made = plain(compare_lines(found)) if args.format == "text" else compare_json(found)
            _output.save(made, args.output)
        elif args.format == "json":
            _output.write(compare_json(found))
        else:
            _output.show(compare_lines(found, _output.width()))
        return int(found.worse)
