"""``holdfast report``."""

from __future__ import annotations

import argparse
import os

from ..config import RunSettings
from ..detectors import ALL, load_plugins
from ..errors import UsageError
from ..report import (
    RunSummary,
    github_text,
    plain,
    read_record,
    report_html,
    report_json,
    report_lines,
    report_md,
    repository,
    sarif_text,
    summarize,
    write_page,
)
from ..run import Run, find_run
from . import _output
from ._parser import RUN_OR_NEWEST, add_format
from ._warning import warn


class ReportCommand:
    """Report on a run: verdict, findings with cause and fix, facts.

    Works during the run and after any kind of crash.

      holdfast report                              the newest run under runs/
      holdfast report 2026-11-15-12                the run whose name begins so
      holdfast report RUN --format html            a page with plots: RUN/report.html
      holdfast report RUN --format md              to paste into an issue
      holdfast report RUN --format json --output run.json
      holdfast report RUN --format sarif --output run.sarif

    holdfast open shows the page in a browser.
    """

    name = "report"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the options."""
        parser.add_argument("run", metavar="RUN", nargs="?", help=RUN_OR_NEWEST)
        add_format(parser, "text", "json", "html", "md", "github", "sarif")
        parser.add_argument(
            "--output",
            metavar="FILE",
            help="write to a file instead; html goes to report.html in the run folder without it",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Summarize the run and show it."""
        run = find_run(args.run, RunSettings().root)
        if args.format in ("html", "md"):
            return self._page(run, args.format, args.output)
        summary = summarize(run)
        if args.format != "text":
            made = _for_programs(summary, args.format)
            _output.give(made, args.output, commands=args.format == "github")
        elif args.output:
            _output.save(plain(report_lines(summary)), args.output)
        else:
            _output.show(report_lines(summary, _output.width()))
        return 0

    @staticmethod
    def _page(run: Run, form: str, output: str | None) -> int:
        """Formats that also show the readable part of a damaged run."""
        record = read_record(run)
        for damage in record.summary.unreadable:
            warn(damage)
        if output:
            _output.save(report_html(record) if form == "html" else report_md(record), output)
        elif form == "md":
            _output.write(report_md(record))
        else:
            try:
                _output.write(f"{write_page(run, record)}\n")
            except OSError as error:
                raise UsageError(
                    f"cannot write {run.page_path}: {error.strerror}; choose another file with "
                    "--output"
                ) from error
        return 0


def _for_programs(summary: RunSummary, form: str) -> str:
    if form == "json":
        return report_json(summary)
    reported = summary.findings, summary.ending, summary.meta, repository()
    if form == "github":
        return github_text(*reported)
    return sarif_text(*reported, (*ALL, *load_plugins(os.environ, ALL).detectors))
