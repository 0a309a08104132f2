"""``holdfast check``."""

from __future__ import annotations

import argparse
import os
import sys

from ..detectors import ALL, load_plugins, select
from ..report import check_lines, findings_json, replay
from ..run import Run
from ..types import Severity
from . import _output


class CheckCommand:
    """Run the detectors over a recorded run: the same code as live, offline.

    The exit code is 0 without findings, 1 with findings, 2 when RUN cannot be read.

      holdfast check runs/2026-11-15-1204-train
      holdfast check RUN --select NUM --ignore NUM006 --format json
    """

    name = "check"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the options."""
        parser.add_argument("run", metavar="RUN", help="run folder")
        for option, what in (("--select", "only these"), ("--ignore", "all but these")):
            parser.add_argument(
                option,
                metavar="CODES",
                action="append",
                default=[],
                help=f"{what}: codes or prefixes, separated by commas (NUM,OPT001)",
            )
        parser.add_argument("--format", choices=("text", "json"), default="text")

    def run(self, args: argparse.Namespace) -> int:
        """Replay and show; findings above INFO make the exit code 1."""
        run = Run.open(args.run)
        plugins = load_plugins(os.environ, ALL)
        for warning in plugins.warnings:
            print(f"holdfast: {warning}", file=sys.stderr)
        among = (*ALL, *plugins.detectors)
        replayed = replay(run, select(_codes(args.select), _codes(args.ignore), among))
        for event in replayed.errors:
            print(f"holdfast: {event.data['where']}: {event.data['error']}", file=sys.stderr)
        if args.format == "json":
            _output.write(findings_json(replayed.findings))
        else:
            _output.show(check_lines(replayed, _output.width()))
        return int(any(finding.severity > Severity.INFO for finding in replayed.findings))


def _codes(given: list[str]) -> list[str]:
    return [code.strip() for text in given for code in text.split(",") if code.strip()]
