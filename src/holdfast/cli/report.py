"""``holdfast report``."""

from __future__ import annotations

import argparse

from ..config import RunSettings
from ..report import plain, report_json, report_lines, summarize
from ..run import Run
from . import _output


class ReportCommand:
    """Tell how a run went: verdict, findings with advice, facts.

    Works while the run is going on and after any kind of death.

      holdfast report                              the newest run under runs/
      holdfast report runs/2026-11-15-1204-train
      holdfast report RUN --format json --output run.json
    """

    name = "report"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the options."""
        parser.add_argument("run", metavar="RUN", nargs="?", help="run folder (default: newest)")
        parser.add_argument("--format", choices=("text", "json"), default="text")
        parser.add_argument("--output", metavar="FILE", help="write to a file instead")

    def run(self, args: argparse.Namespace) -> int:
        """Summarize the run and show it."""
        run = Run.latest(RunSettings().root) if args.run is None else Run.open(args.run)
        summary = summarize(run)
        if args.format == "json":
            text = report_json(summary)
            _output.save(text, args.output) if args.output else _output.write(text)
        elif args.output:
            _output.save(plain(report_lines(summary)), args.output)
        else:
            _output.show(report_lines(summary, _output.width()))
        return 0
