"""``holdfast explain``."""

from __future__ import annotations

import argparse
import os
import sys

from ..detectors import ALL, by_code, load_plugins
from ..report import catalogue_lines, explain_lines
from . import _output


class ExplainCommand:
    """Explain a finding: what it means, what usually causes it, what to do.

    holdfast explain NUM002
    holdfast explain nonfinite_gradient
    holdfast explain                      all of them, one line each
    """

    name = "explain"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the options."""
        parser.add_argument("code", metavar="CODE", nargs="?", help="code or name of a detector")

    def run(self, args: argparse.Namespace) -> int:
        """Print the document of one detector, or the list of all."""
        plugins = load_plugins(os.environ, ALL)
        for warning in plugins.warnings:
            print(f"holdfast: {warning}", file=sys.stderr)
        among = (*ALL, *plugins.detectors)
        if args.code is None:
            _output.show(catalogue_lines(among, _output.width()))
        else:
            _output.show(explain_lines(by_code(args.code, among)))
        return 0
