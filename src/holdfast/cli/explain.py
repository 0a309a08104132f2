"""``holdfast explain``."""

from __future__ import annotations

import argparse
import os

from ..detectors import ALL, by_code, load_plugins
from ..detectors.search import is_about, search
from ..errors import UsageError
from ..report import catalogue_lines, explain_lines, found_lines
from . import _output
from ._warning import warn


class ExplainCommand:
    """Explain a finding: what it means, what usually causes it, what to do.

    WORD is a code, a name, or what you would call the trouble. Where several findings fit, they
    are listed, the best first.

      holdfast explain NUM002
      holdfast explain nan
      holdfast explain out of memory
      holdfast explain                      all of them, one line each
    """

    name = "explain"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the options."""
        parser.add_argument(
            "words", metavar="WORD", nargs="*", help="code, name, or words such as: leak, slow"
        )

    def run(self, args: argparse.Namespace) -> int:
        """Print the document of one detector, or the list of those that fit."""
        plugins = load_plugins(os.environ, ALL)
        for warning in plugins.warnings:
            warn(warning)
        among = (*ALL, *plugins.detectors)
        if not args.words:
            _output.show(catalogue_lines(among, _output.width()))
            return 0
        asked = " ".join(args.words)
        found = search(asked, among)
        if len(found) > 1 or (found and not is_about(asked, found[0])):
            _output.show(found_lines(asked, found, _output.width()))
            return 0
        if not found and len(args.words) > 1 and not any(map(str.isdigit, asked)):
            raise UsageError(
                f"there is nothing about {asked!r} yet: no finding fits these words; "
                "`holdfast explain` lists all of them"
            )
        # Nothing fits: several codes, or a mistake, which names the nearest.
        for detector in found or [by_code(word, among) for word in args.words]:
            _output.show(explain_lines(detector, _output.columns()))
        return 0
