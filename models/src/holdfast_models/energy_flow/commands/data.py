"""``holdfast energy_flow data``: the options of its verbs; ``dataset_tool`` does the work."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...answers import whole

if TYPE_CHECKING:
    from ..data.dataset_tool import Report

__all__ = ["add_data_verbs"]

_SOURCES = ("grammar", "pairs", "snli")


def add_data_verbs(parser: argparse.ArgumentParser) -> None:
    """Describe the verbs; each sets ``act``, which is called with the arguments."""
    verbs = parser.add_subparsers(metavar="VERB", dest="data_verb", required=True)

    def verb(name: str, what: str, act: Callable[[Any], Report], place: str) -> Any:
        one = verbs.add_parser(name, help=what, description=what, allow_abbrev=False)
        one.add_argument("path", metavar=place, help=_PLACES[place])
        one.set_defaults(act=lambda args: _reported(act(args)))
        return one

    make = verb("make", "Write pairs as a set.", _make, "FOLDER")
    _make_options(make)
    what = "List the sets of a folder with kind, size and age."
    verb("list", what, _tool("list_sets"), "FOLDER")
    verb("info", "Tell what is in a set.", _tool("info"), "SET")
    verb("validate", "Check whether a set can be trained on.", _tool("validate"), "SET")
    dedup = verb("dedup", "Remove what is there twice.", _tool("dedup", "dry_run"), "PATH")
    what = "Put sets away that have not changed for long."
    archive = verb("archive", what, _tool("archive", "days", "dry_run"), "FOLDER")
    archive.add_argument(
        "--days", metavar="N", type=_days, default=30.0, help="how old (default: 30)"
    )
    for one in (make, dedup, archive):
        one.add_argument("--dry-run", action="store_true", help="tell, change nothing")


_PLACES = {
    "FOLDER": "folder of sets",
    "SET": "JSONL file of pairs, file of embeddings, or folder of mapped ones",
    "PATH": "JSONL file of pairs, or folder of sets",
}


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = math.nan
    if not 0 <= days < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of days from 0 on")
    return days


def _make_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--source", choices=_SOURCES, default="grammar", help="where pairs come from"
    )
    parser.add_argument("--path", dest="file", metavar="FILE", help="of the source pairs or snli")
    parser.add_argument("--count", metavar="N", type=whole(1), default=5000, help="default: 5000")
    parser.add_argument("--seed", metavar="N", type=whole(0), default=0, help="which of them")
    parser.add_argument("--task", choices=("rewrite", "conditional"), default="rewrite")
    parser.add_argument(
        "--embedded", action="store_true", help="write embeddings of the teacher beside the texts"
    )
    parser.add_argument("--teacher", choices=("hash", "minilm"), default="hash")
    parser.add_argument("--width", metavar="E", type=whole(2), default=384, help="of embeddings")


def _make(args: argparse.Namespace) -> Report:
    from holdfast import HoldfastError

    from ..data.dataset_tool import make
    from ..data.pairs import DataSettings

    try:
        settings = DataSettings(
            source=args.source,
            path=args.file,
            count=args.count,
            seed=args.seed,
            task=args.task,
            teacher=args.teacher,
            width=args.width,
            split="pair",  # the one that every source has; a set is made of all parts
        )
    except ValueError as error:
        raise HoldfastError(f"data make: {error}") from None
    return make(args.path, settings, embedded=args.embedded, dry_run=args.dry_run)


def _tool(name: str, *options: str) -> Callable[[Any], Report]:
    """A function of ``dataset_tool``, given the path and these options; imported when called."""

    def call(args: argparse.Namespace) -> Report:
        from ..data import dataset_tool

        given = {option: getattr(args, option) for option in options}
        return getattr(dataset_tool, name)(args.path, **given)

    return call


def _reported(report: Report) -> int:
    print("\n".join(report.lines))
    return 0 if report.ok else 1
