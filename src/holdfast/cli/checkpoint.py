"""``holdfast checkpoint``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..checkpoint.record import DATA
from ..checkpoint.store import Entry
from ..config import CheckpointSettings
from ..errors import CheckpointError
from ..report import Line
from ..report.layout import line
from ..report.words import plural
from ..run import encode
from ..run.folder import META
from . import _checkpoints as texts
from . import _output
from ._checkpoints import entries_of, entry_of, is_elsewhere, is_of_run, path_of, store_of
from ._parser import add_format


class CheckpointCommand:
    """List, verify, show, compare, export and prune checkpoints.

    PATH is a run (its folder, its name or last), a folder of checkpoints, or one checkpoint: a
    file, or the folder step-… that several ranks wrote together. Of a folder of checkpoints, show,
    diff and export take the newest good one. The exit code is 0 on success, 1
    when a checkpoint is damaged or two differ, 2 when PATH is wrong.

      holdfast checkpoint ls runs/2026-11-15-1204-train
      holdfast checkpoint verify RUN                     read everything, compare checksums
      holdfast checkpoint show RUN --tensors
      holdfast checkpoint diff RUN RUN2                  shapes, values, settings of both
      holdfast checkpoint export RUN state.pt            for torch.load, without holdfast
      holdfast checkpoint export RUN all.safetensors     tensor by tensor, also of many ranks
      holdfast checkpoint export RUN model.safetensors --part models.model
      holdfast checkpoint prune RUN --last 1 --best 1 --dry-run

    prune removes what bears a name of ours. Where the run.json of a run names a folder outside of
    it, only intact checkpoints go whose records name this run; or give that folder as PATH.
    In Python, holdfast.load_checkpoint(PATH) gives the state dicts of model and optimizer.
    """

    name = "checkpoint"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the verbs and their options."""
        verbs = parser.add_subparsers(metavar="VERB", dest="verb", required=True)

        def verb(name: str, what: str, run: Callable[[Any], int], paths: Any = 1) -> Any:
            one = verbs.add_parser(name, help=what, description=what, allow_abbrev=False)
            one.add_argument(
                "path",
                metavar="PATH",
                nargs=paths,
                help="run, folder of checkpoints, or a checkpoint",
            )
            add_format(one, "text", "json")
            one.set_defaults(act=run)
            return one

        verb("ls", "List checkpoints with step, age, size and metrics.", _ls, "+")
        verb("verify", "Read checkpoints completely and compare their checksums.", _verify, "+")
        show = verb("show", "Show the contents of a checkpoint.", _show)
        show.add_argument("--tensors", action="store_true", help="name every tensor with its shape")
        verb("diff", "Compare two checkpoints bitwise (needs torch).", _diff, 2)
        export = verb("export", "Write a checkpoint as one file.", _export)
        export.add_argument(
            "out",
            metavar="OUT",
            help="new file: NAME.safetensors for the tensors, any other for torch.load",
        )
        export.add_argument(
            "--part",
            metavar="NAME",
            default="",
            help="of a .safetensors file: only tensors below this name, such as models.model",
        )
        _prune_options(verb("prune", "Remove all but the newest and the best.", _prune))

    def run(self, args: argparse.Namespace) -> int:
        """Run one verb."""
        return args.act(args)


def _prune_options(parser: Any) -> None:
    defaults = CheckpointSettings()
    parser.add_argument(
        "--last", metavar="N", type=_count(1), default=defaults.last,
        help=f"how many of the newest to keep (default: {defaults.last})",
    )  # fmt: skip
    parser.add_argument(
        "--best", metavar="K", type=_count(0), default=defaults.best,
        help=f"how many of the best to keep beside them (default: {defaults.best})",
    )  # fmt: skip
    parser.add_argument(
        "--metric", metavar="NAME", default=defaults.metric,
        help=f"metric that decides which is best (default: {defaults.metric})",
    )  # fmt: skip
    parser.add_argument(
        "--mode", choices=("min", "max"), default=defaults.mode,
        help=f"whether a low or a high metric is good (default: {defaults.mode})",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="list only, remove nothing")


def _count(least: int) -> Callable[[str], int]:
    def whole(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return whole


def _ls(args: argparse.Namespace) -> int:
    entries = _entries(args.path)
    _tell(args.format, [texts.plain_entry(one) for one in entries], lambda: texts.table(entries))
    return int(any(entry.damage for entry in entries))


def _verify(args: argparse.Namespace) -> int:
    checked: list[Entry] = []
    for entry in _entries(args.path):
        checked.append(entry.checked())
        if args.format == "text":  # at once: each may take a while
            _output.show(texts.verdict_lines(checked[-1]))
    if args.format == "json":
        _tell("json", [texts.plain_entry(one) for one in checked], list)
    return int(any(entry.damage for entry in checked))


def _show(args: argparse.Namespace) -> int:
    entry = entry_of(args.path[0])
    width = _output.width()
    _tell(
        args.format,
        {**entry.record, "path": str(entry.path), "damage": entry.damage},
        lambda: texts.show_lines(entry, width, tensors=args.tensors),
    )
    return int(bool(entry.damage))


def _diff(args: argparse.Namespace) -> int:
    first, second = (entry_of(path) for path in args.path)
    # Not before it is needed: torch takes seconds to import and may not be there.
    try:
        from ..checkpoint.values import contrast
    except ModuleNotFoundError as error:
        raise CheckpointError(
            f"diff compares values and needs {error.name}, which is not installed here; "
            "compare names and shapes with: holdfast checkpoint show --tensors"
        ) from error
    found = contrast(first.path, second.path)
    _tell(args.format, texts.plain_contrast(found), lambda: texts.diff_lines(first, second, found))
    return int(bool(found))


def _export(args: argparse.Namespace) -> int:
    entry, target = entry_of(args.path[0]), Path(args.out)
    if target.exists():
        raise CheckpointError(f"{target} exists already; choose a new name")
    tensors = target.suffix == DATA
    if args.part and not tensors:
        raise CheckpointError(f"--part goes with a name that ends in {DATA}, not with {target}")
    try:
        from ..checkpoint.plain_state import export
        from ..checkpoint.sharded.export import export_tensors
    except ModuleNotFoundError as error:
        raise CheckpointError(
            f"export needs {error.name}, which is not installed here; run it where the model is"
        ) from error
    if tensors:
        count = export_tensors(entry.path, target, part=args.part and f"{args.part}.")
        reported = f"wrote {target}: {plural(count, 'tensor')}"
        load = f'tensors = safetensors.torch.load_file("{target}")'
        written = {"path": str(entry.path), "out": str(target), "tensors": count}
        _tell(args.format, written, lambda: [line(text) for text in (reported, load)])
        return 0
    export(entry.path, target)
    plain = {"path": str(entry.path), "out": str(target)}
    code = f'state = torch.load("{target}", weights_only=True)'
    load = 'model.load_state_dict(state["model"]); optimizer.load_state_dict(state["optimizer"])'
    _tell(args.format, plain, lambda: [line(text) for text in (f"wrote {target}", code, load)])
    return 0


def _prune(args: argparse.Namespace) -> int:
    path = path_of(args.path[0])
    store = store_of(path)
    before = store.entries()
    theirs = is_elsewhere(store, path)
    if theirs:
        # Whoever wrote run.json chose this folder: what it holds must say that it is of this run.
        before = [entry for entry in before if is_of_run(entry, path)]
        if not before:
            raise CheckpointError(
                f"no checkpoint in {store.folder} says that it is of the run in {path}, whose "
                f"{META} names that folder; if it is yours: holdfast checkpoint prune "
                f"{store.folder}"
            )
        if args.format == "text":
            _output.show([line(f"in {store.folder}, which is outside of {path}")])
    known = {entry.path for entry in before}
    gone = store.prune(
        args.last, args.best, args.metric, args.mode, args.dry_run, damaged=not theirs,
        which=lambda entry: entry.path in known,
    )  # fmt: skip
    paths = {entry.path for entry in gone}
    kept = [entry for entry in before if entry.path not in paths]
    plain = {
        "removed": [texts.plain_entry(one) for one in gone],
        "kept": [texts.plain_entry(one) for one in kept],
        "dry_run": args.dry_run,
    }
    _tell(args.format, plain, lambda: texts.prune_lines(gone, kept, dry_run=args.dry_run))
    return 0


def _entries(paths: Sequence[str]) -> list[Entry]:
    entries = [entry for path in paths for entry in entries_of(path)]
    if not entries:
        raise CheckpointError(
            f"there is no checkpoint in {', '.join(map(str, paths))}; training writes them every "
            "checkpoint.minutes, into the folder of the run"
        )
    return entries


def _tell(form: str, plain: Any, lines: Callable[[], Sequence[Line]]) -> None:
    if form == "json":
        _output.write(encode(plain, indent=2).decode() + "\n")
    else:
        _output.show(lines())
