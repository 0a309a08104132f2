"""``holdfast runs prune``."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..checkpoint.record import record_path
from ..checkpoint.store import FOLDER, CheckpointStore, Entry
from ..config import RunSettings
from ..errors import RunFolderError, UsageError
from ..regular_files import open_regular
from ..report import Line
from ..report.layout import Span, line
from ..report.run_list import FoundRun, found_runs, size_of
from ..report.words import listed, plural, size
from ..run import Run, encode, life_of
from ..run.folder import TRACK
from ..run.table import read_header
from . import _output
from ._parser import add_format
from ._run_table import age

_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
# A run of another machine counts as running until it was silent for so long. A guess: nothing
# that trains writes nothing for a day.
_SILENT = 86400.0
# Files that are named where some stay.
_NAMED = 5
_TRACKED = {
    "json.json", "mlflow.json", "tensorboard.json", "metrics.jsonl", "metrics.csv", "notes.jsonl",
    "about.json", "mlflow_spill.jsonl",
}  # fmt: skip
# What else we write into a folder that is the run's own.
_OWN = re.compile(
    rf"{FOLDER}|{TRACK}|"  # links of these names, not what they lead to
    r"(?:traceback|stacks)\.r[\dp-]+\.txt|train\.yaml|hook_errors\.txt|cut_off/[^/]+"
    r"|pictures/(?:pictures\.json|[^/]+\.png)|tensorboard/events\.out\.tfevents\.[^/]+"
    r"|(?:profile/)?(?:trace\.json(?:\.gz)?|profile\.txt)"
)
_LEFT_OVER = re.compile(r"step-\d{10,}\.[^/]+\.tmp(?:/[^/]+)?")


@dataclass(frozen=True, kw_only=True)
class Victim:
    """A run that is to go, or its checkpoints."""

    found: FoundRun
    paths: tuple[Path, ...]
    """What is removed, in this order."""
    bytes: int
    left: tuple[Path, ...] = ()
    """What stays since it is not known to be ours."""
    error: str = ""


class PruneRuns:
    """Remove old runs of a folder, or only their checkpoints.

    A run goes when every rule that is given lets it go. Without --yes nothing is removed: the list
    says what would go and how much. Never touched are runs that are still running, or may be on
    another machine; links; folders without a run.json or with one that cannot be read; and files
    that do not bear a name that holdfast gives. In a run folder that was there before the run a
    file must begin as ours do, and a checkpoint have its record and digest. What is in doubt stays
    and is named. The exit code is 1 when something could not be removed.

      holdfast runs prune --keep 10                       all but the newest ten
      holdfast runs prune --older-than 14d --yes          units: m, h, d, w
      holdfast runs prune --keep 5 --older-than 2w        older than that, and not of the newest 5
      holdfast runs prune out --keep 3 --checkpoints-only
    """

    name = "runs prune"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Describe the rules."""
        root = RunSettings().root
        parser.add_argument(
            "root", metavar="ROOT", nargs="?", default=root,
            help=f"folder that holds runs (default: {root})",
        )  # fmt: skip
        parser.add_argument("--keep", metavar="N", type=int, help="keep the newest N runs")
        parser.add_argument(
            "--older-than", metavar="AGE", help="keep runs that started less than AGE ago: 14d, 12h"
        )
        parser.add_argument(
            "--checkpoints-only",
            action="store_true",
            help="remove the checkpoints and keep the record; such runs cannot be resumed",
        )
        parser.add_argument("--yes", action="store_true", help="remove; without it only list")
        add_format(parser, "text", "json")

    def run(self, args: argparse.Namespace) -> int:
        """Choose, remove where that is asked for, and tell."""
        if args.keep is None and args.older_than is None:
            raise UsageError("no rule was given; write --keep N, --older-than 14d or both")
        if args.keep is not None and args.keep < 0:
            raise UsageError(f"--keep {args.keep}; write a number of at least 0")
        oldest = None if args.older_than is None else _seconds(args.older_than)
        if not os.path.isdir(args.root):
            raise RunFolderError(f"{args.root} is no folder; give the folder that holds runs")
        victims, spare = _choose(Path(args.root), args.keep, oldest, args.checkpoints_only)
        if args.yes:
            victims = [_remove(victim) for victim in victims]
        if args.format == "json":
            _output.write(encode(_plain(victims, spare, args.yes), indent=2).decode() + "\n")
        else:
            _output.show(_lines(victims, spare, args))
        return int(any(victim.error for victim in victims))


def _choose(
    root: Path, keep: int | None, oldest: float | None, checkpoints: bool
) -> tuple[list[Victim], dict[str, str]]:
    """The runs that go, and of those that the rules let go the ones that stay, with the reason."""
    # The runs of a scan are its own: they go when its folder is given as ROOT.
    found = [one for one in found_runs(root) if one.path.parent == root]
    readable = [one for one in found if one.run is not None]
    spare = {one.name: "its run.json cannot be read" for one in found if one.run is None}
    victims: list[Victim] = []
    for one in readable[keep or 0 :]:
        if oldest is not None and time.time() - one.created < oldest:
            continue
        why = _why_not(one)
        if why:
            spare[one.name] = why
            continue
        left: list[Path] = []
        paths = tuple(_checkpoints(one, left) if checkpoints else _contents(one, left))
        if paths:
            total = sum(size_of(p) if _is_folder(p) else p.lstat().st_size for p in paths)
            victims.append(Victim(found=one, paths=paths, bytes=total, left=tuple(left)))
    return victims, spare


def _why_not(one: FoundRun) -> str:
    """Why a run must stay; empty when it may go."""
    if one.path.is_symlink():
        return "it is a link"
    try:
        life = life_of(Run.open(one.path))
    except RunFolderError as error:
        return str(error)
    if life.state == "running":
        return f"it is running, process {life.pid}"
    if life.state == "unknown" and life.silence < _SILENT:
        return f"it may be running{f' on {life.host}' if life.host else ''}"
    return ""


def _checkpoints(one: FoundRun, left: list[Path]) -> Iterator[Path]:
    """The files of its checkpoints that are ours; ``left`` gets what else there is."""
    assert one.run is not None
    folder = one.path / FOLDER
    if not _is_folder(folder):
        return
    ours: set[Path] = set()
    for entry in CheckpointStore(folder).entries():
        # Our own folder holds none of somebody else's under such a name.
        if entry.ours and (one.run.own_folder or (entry.record and not entry.checked().damage)):
            ours |= set(_files_of(entry))
    if one.run.own_folder:  # what a save that was cut short has left
        found = ((path, path.relative_to(folder).as_posix()) for path in _files(folder))
        ours |= {path for path, name in found if _LEFT_OVER.fullmatch(name)}
    yield from _only(folder, ours, left)


def _only(folder: Path, ours: set[Path], left: list[Path]) -> Iterator[Path]:
    """Those files of a folder, or the folder where it holds nothing else."""
    kept = [path for path in _files(folder) if path not in ours]
    left += kept
    yield from sorted(ours) if kept else (folder,)


def _files_of(entry: Entry) -> Iterator[Path]:
    if entry.shared:
        yield from (entry.path / str(name) for name in entry.record.get("files", ()))
    yield from (path for path in (entry.path, record_path(entry.path)) if path.is_file())


def _contents(one: FoundRun, left: list[Path]) -> Iterator[Path]:
    """What is removed of a run; run.json last, so that a run cut short is still seen as one."""
    assert one.run is not None
    run, meta = one.run, one.run.meta_path
    recorded = {path for path in run.recorded_paths() if path != meta}
    # Somebody's folder that a run was put into: its names do not say that a file is ours.
    ours = {path for path in recorded if run.own_folder or _is_ours(path)}
    yield from sorted(ours)
    left += sorted(recorded - ours)
    yield from _checkpoints(one, left)
    if _is_folder(run.track_folder):
        tracked = {path for path in run.track_folder.iterdir() if path.name in _TRACKED}
        yield from _only(run.track_folder, tracked, left)
    if run.own_folder:
        # That it is our own is what run.json says, which may be forged: other names stay here too.
        known = {meta, *recorded}
        for path in _files(one.path):
            name = path.relative_to(one.path).as_posix()
            if name.startswith((f"{FOLDER}/", f"{TRACK}/")) or path in known:
                continue
            if _OWN.fullmatch(name):
                yield path
            else:
                left.append(path)
    yield meta


def _files(folder: Path) -> Iterator[Path]:
    """Everything below a folder that is no folder; links are not followed."""
    return (path for path in sorted(folder.rglob("*")) if not _is_folder(path))


def _is_ours(path: Path) -> bool:
    """Whether a file with a name as ours have them begins as ours do."""
    try:
        with open_regular(path) as file:
            if path.name.startswith("ring."):
                return True
            if ".bin" in path.suffixes:
                read_header(file, path)
                return True
            head = file.read(1 << 12)
    except (OSError, RunFolderError):
        return False
    return head[:1] in (b"", b"{") or (path.suffix == ".html" and b"holdfast" in head)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _remove(victim: Victim) -> Victim:
    """Remove a run, unless it came to life meanwhile."""
    why = _why_not(victim.found)
    if why:
        return replace(victim, error=why)
    try:
        for path in victim.paths:
            _remove_path(path)
        emptied = {victim.found.path / FOLDER, *(path.parent for path in victim.paths)}
        for folder in sorted(emptied, reverse=True):
            if _is_folder(folder) and not any(folder.iterdir()):
                folder.rmdir()
    except OSError as error:
        return replace(victim, error=f"cannot remove {error.filename}: {error.strerror}")
    return victim


def _remove_path(path: Path) -> None:
    """Remove a file, a link (never what it leads to) or a folder with all that is in it."""
    if _is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _lines(
    victims: Sequence[Victim], spare: dict[str, str], args: argparse.Namespace
) -> list[Line]:
    verb = "removed" if args.yes else "would remove"
    what = "checkpoints of " if args.checkpoints_only else ""
    lines: list[Line] = []
    for victim in victims:
        text = f"{victim.found.name}  {size(victim.bytes)}"
        text += f"  {age(time.time() - victim.found.created)} old"
        if victim.error:
            lines.append(line(Span(f"kept  {text}: {victim.error}", "red")))
        else:
            lines.append(line(f"{verb}  {what}{text}"))
        if victim.left:
            names = [str(path.relative_to(victim.found.path)) for path in victim.left]
            reported = f"kept  in {victim.found.name}: {listed(names[:_NAMED])}"
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            lines.append(line(Span(f"{reported}{more}, not known to be ours", "yellow")))
    lines += [line(Span(f"kept  {name}: {why}", "yellow")) for name, why in spare.items()]
    gone = [victim for victim in victims if not victim.error]
    total = f"{verb} {what}{plural(len(gone), 'run')}, {size(sum(v.bytes for v in gone))}"
    hint = "" if args.yes or not gone else "; to do it, add --yes"
    return [*lines, line(Span(total, "bold"), hint)]


def _plain(victims: Sequence[Victim], spare: dict[str, str], done: bool) -> dict[str, Any]:
    gone = [
        {
            "name": victim.found.name,
            "path": str(victim.found.path),
            "bytes": victim.bytes,
            "error": victim.error,
            "left": [str(path) for path in victim.left],
        }
        for victim in victims
    ]
    return {"format": 1, "removed": done, "runs": gone, "kept": spare}


def _seconds(text: str) -> float:
    """An age such as ``14d``.

    >>> _seconds("12h"), _seconds("1.5d")
    (43200.0, 129600.0)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", text.strip())
    if match is None:
        raise UsageError(f"--older-than {text!r}; write a number and a unit: 30m, 12h, 14d, 2w")
    return float(match[1]) * _UNITS[match[2]]
