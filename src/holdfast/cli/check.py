"""``holdfast check``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ..config import RunSettings, load
from ..detectors import ALL, Detector, load_plugins, select
from ..detectors.options import check_options, configured, recorded_options
from ..errors import UsageError
from ..report import check_json, check_lines, github_text, plain, replay, repository, sarif_text
from ..run import find_run
from . import _output
from ._parser import RUN_OR_NEWEST, add_format
from ._warning import warn


class CheckCommand:
    """Run the detectors over a recorded run: the same code as live, offline.

    The exit code is 0 for a run without findings, 1 for one that crashed, was killed or
    stopped, or has findings (information does not count), 2 when RUN cannot be read. A run that is
    still going is judged by what it has recorded so far, an interrupted one by its findings.

      holdfast check                       the newest run under runs/
      holdfast check 2026-11-15-12         the run whose name begins so
      holdfast check RUN --select NUM --ignore NUM006 --format json
      holdfast check RUN --set detectors.TPT004.grew=2
      holdfast check --format github       findings as annotations, in a GitHub workflow
    """

    name = "check"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the options."""
        parser.add_argument("run", metavar="RUN", nargs="?", help=RUN_OR_NEWEST)
        for option, what in (("--select", "only these"), ("--ignore", "all but these")):
            parser.add_argument(
                option,
                metavar="CODES",
                action="append",
                default=[],
                help=f"{what}: codes or prefixes, separated by commas (NUM,OPT001)",
            )
        parser.add_argument(
            "--set",
            metavar="KEY=VALUE",
            action="append",
            default=[],
            help="an option of a detector, e.g. detectors.TPT004.grew=2 (repeatable; default: what "
            "the run was judged with)",
        )
        add_format(parser, "text", "json", "github", "sarif")
        parser.add_argument("--output", metavar="FILE", help="write to a file instead")

    def run(self, args: argparse.Namespace) -> int:
        """Replay and show; a run that died and findings above INFO make the exit code 1."""
        run = find_run(args.run, RunSettings().root)
        plugins = load_plugins(os.environ, ALL)
        for warning in plugins.warnings:
            warn(warning)
        among = (*ALL, *plugins.detectors)
        options = _options(args.set, run.meta, among)
        chosen = select(_codes(args.select), _codes(args.ignore), among)
        replayed = replay(run, configured(chosen, options))
        for event in replayed.errors:
            warn(f"{event.data['where']}: {event.data['error']}")
        reported = replayed.findings, replayed.ending, run.meta, repository()
        if args.format == "json":
            _output.give(check_json(replayed), args.output)
        elif args.format == "github":
            _output.give(github_text(*reported), args.output, commands=True)
        elif args.format == "sarif":
            _output.give(sarif_text(*reported, among), args.output)
        elif args.output:
            _output.save(plain(check_lines(replayed)), args.output)
        else:
            _output.show(check_lines(replayed, _output.width()))
        return int(replayed.sick)


def _codes(given: list[str]) -> list[str]:
    return [code.strip() for text in given for code in text.split(",") if code.strip()]


def _options(
    given: Sequence[str], meta: Mapping[str, Any], among: Sequence[type[Detector]]
) -> dict[str, dict[str, Any]]:
    """Options that the run was judged with; those on the command line come before them."""
    detectors = load(None, given).detectors
    for text in given:
        parts = text.partition("=")[0].strip().split(".")
        if parts[0] != "detectors" or len(parts) < 3:
            raise UsageError(
                f"check judges a recorded run: {text!r} is no option of a detector; write it as "
                "detectors.CODE.OPTION=VALUE"
            )
    found = {code: {**values} for code, values in recorded_options(meta, among).items()}
    for code, values in check_options(detectors.options, among).items():
        found.setdefault(code, {}).update(values)
    return found
