"""Run folders: making, finding and naming what is in them.

Nothing else in holdfast knows a file name. A run folder holds ``run.json`` (what was run,
how it ended) and, for each lane (one training process), a ring, tables of rows in segments
and streams of JSON lines:

    run.json                     ring.r0.bin
    steps.r0.000000.bin          events.r0.jsonl  findings.r0.jsonl  batches.r0.jsonl
                                 quarantine.r0.jsonl  traceback.r0.txt

The first process of rank 3 writes lane ``r3``, a later one ``r3-p{pid}``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import psutil

from holdfast.errors import RunFolderError, UnwritableFolderError
from holdfast.redaction import hide_known_in
from holdfast.regular_files import open_regular, read_regular, remedy
from holdfast.run import jsonl
from holdfast.run.checked import meta_of
from holdfast.run.durable import (
    BINARY,
    SHARED,
    TEMPORARY,
    make_folder,
    mode_in,
    replace_file,
    write_text,
)
from holdfast.run.ring import Ring

FORMAT = 1
META = SHARED
PAGE, OVERLAY = "report.html", "compare.html"
TRACK = "track"
# Runs are no part of a repository: a folder of runs that we make says so to git.
_IGNORE, _ALL = ".gitignore", b"*\n"
OWN = "own_folder"
_List = list  # inside the class the word means Run.list
# What is wrong with the path that was given, wherever it lies.
_BAD_NAME = (errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL)
STREAMS = ("events", "findings", "batches", "quarantine")

_LANE = re.compile(r"r(\d+)(?:-p(\d+)(?:-(\d+))?)?")
_FILE = re.compile(
    rf"(?P<name>[a-z][a-z0-9_]*)\.(?P<lane>{_LANE.pattern})\."
    r"(?:(?P<ring>bin)|(?P<segment>\d{6,})\.bin|(?P<stream>jsonl))"
    rf"(?P<temporary>(?:\.\d+)?{re.escape(TEMPORARY)})?"
)
_OUR_NAME = re.compile(r"\d{4}-\d\d-\d\d-\d{4,6}-")
_FRAME_FILE = re.compile(
    rf"(?:{'|'.join(map(re.escape, (META, PAGE, OVERLAY)))})(?:\.\d+{re.escape(TEMPORARY)})?"
)


class Run:
    """One run folder: its meta data and the paths of its files.

    >>> import tempfile
    >>> run = Run.create(tempfile.mkdtemp(), {"script": "train.py"})
    >>> run.update_meta(status="finished", exit_code=0)
    >>> Run.open(run.path).meta["status"]
    'finished'
    """

    def __init__(
        self, path: Path, meta: Mapping[str, Any], made: tuple[Path, ...] | None = None
    ) -> None:
        """Wrap a folder known to be a run; use ``create`` or ``open``.

        ``made`` are the folders this run's creation had to make, innermost first; None for
        a run that was opened.
        """
        self.path = path
        self._meta = dict(meta)
        self._made = made

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    # Making and finding.

    @classmethod
    def create(cls, path: str | os.PathLike[str], meta: Mapping[str, Any]) -> Self:
        """Start a run in ``path``, made if need be; ``RunFolderError`` if that cannot be."""
        path = Path(path)
        if os.path.lexists(path) and not os.path.isdir(path):
            raise RunFolderError(
                f"the run folder {path} is a file, in {path.parent}; "
                "choose another with --run-dir DIR"
            )
        made = tuple(_missing(path))
        now = datetime.now().astimezone().isoformat(timespec="milliseconds")
        full = {"format": FORMAT, "created": now, "status": "running", **meta}
        full["format"] = FORMAT
        # A folder that was there before may hold what is not ours to remove.
        full.setdefault(OWN, bool(made))
        try:
            make_folder(path)
            replace_file(path / META, _pretty(full), exclusive=True)
        except FileExistsError as error:
            raise RunFolderError(
                f"the folder {path} already holds a run ({META}); choose another with "
                "--run-dir DIR or move this one away"
            ) from error
        except OSError as error:
            _remove_folders(made)
            kind = RunFolderError if error.errno in _BAD_NAME else UnwritableFolderError
            raise kind(
                f"cannot write the run folder {path}: {error.strerror}; choose another with "
                "--run-dir DIR"
            ) from error
        return cls(path, full, made)

    @classmethod
    def create_in(
        cls, root: str | os.PathLike[str], script: str, meta: Mapping[str, Any],
        when: datetime | None = None,
    ) -> Self:  # fmt: skip
        """Start a run under ``root`` with a fresh name, also when many start in one minute."""
        when = when or datetime.now().astimezone()
        while True:
            path = new_run_path(root, script, when)
            made = tuple(_missing(path))
            try:
                make_folder(path, exist_ok=False)
            except FileExistsError:
                if not os.path.isdir(path.parent):
                    break
                continue
            except OSError:
                break
            if path.parent in made:
                ignore_runs(path.parent)
            try:
                run = cls.create(path, {**meta, OWN: True})
            except RunFolderError:
                _remove_folders(made)
                raise
            run._made = made
            return run
        # Whatever is wrong with this place, create says it in the words it has for it.
        return cls.create(path, meta)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open an existing run; ``RunFolderError`` says why it is none."""
        path = Path(path)
        if not os.path.isdir(path):
            what = "is a file" if os.path.exists(path) else "does not exist"
            raise RunFolderError(f"the run folder {path} {what}; give the folder that holds {META}")
        return cls(path, meta_of(_read_meta(path)))

    @classmethod
    def list(cls, root: str | os.PathLike[str]) -> _List[Self]:
        """All readable runs directly under ``root``, newest first; none if it is missing."""
        runs: _List[Self] = []
        for path in _children(Path(root)):
            with contextlib.suppress(RunFolderError):
                runs.append(cls.open(path))
        return sorted(runs, key=_age, reverse=True)

    @classmethod
    def latest(cls, root: str | os.PathLike[str]) -> Self:
        """The newest run under ``root``; ``RunFolderError`` when there is none."""
        runs = cls.list(root)
        if not runs:
            raise RunFolderError(f"no run found under {root}; start one with: holdfast run SCRIPT")
        return runs[0]

    # Meta data.

    @property
    def meta(self) -> dict[str, Any]:
        """What ``run.json`` said when this object last read or wrote it."""
        return self._meta

    def update_meta(self, **changes: Any) -> None:
        """Change keys of ``run.json`` in one step; what others changed meanwhile is kept."""
        meta = {**_read_meta(self.path), **changes}
        try:
            replace_file(self.path / META, _pretty(meta))
        except OSError as error:
            raise RunFolderError(
                f"cannot write {META}: {error.strerror}, in {self.path}; "
                "free some space or check the permissions"
            ) from error
        self._meta = meta

    @property
    def own_folder(self) -> bool:
        """Whether the folder was made for this run, so that all in it may go with it."""
        # Runs of older versions do not say it; names such as ours are only given to new folders.
        return bool(self._meta.get(OWN, _OUR_NAME.match(self.path.name)))

    # Lanes and paths.

    @property
    def meta_path(self) -> Path:
        """``run.json``."""
        return self.path / META

    def lanes(self) -> _List[str]:
        """Every lane that has a file, by rank, then in the order of their names."""
        found = {match["lane"] for _, match in self._files() if not match["temporary"]}
        return sorted(found, key=_lane_order)

    @property
    def page_path(self) -> Path:
        """The report for a browser; made from everything else, and made again when asked for."""
        return self.path / PAGE

    @property
    def overlay_path(self) -> Path:
        """The last comparison with another run, for a browser."""
        return self.path / OVERLAY

    @property
    def track_folder(self) -> Path:
        """What experiment trackers remember of this run; there once one has something of it."""
        return self.path / TRACK

    def ring_path(self, lane: str) -> Path:
        """The lane's ring; gone once it was drained for good."""
        return self.path / f"ring.{lane}.bin"

    def traceback_path(self, lane: str) -> Path:
        """The traceback of the exception that ended a lane, as text."""
        return self.path / f"traceback.{lane}.txt"

    def stacks_path(self, lane: str) -> Path:
        """Where the stacks of a process that hangs are written."""
        return self.path / f"stacks.{lane}.txt"

    def write_traceback(self, lane: str, text: str) -> None:
        """Write the traceback of a lane; a disk that takes no file may still take the event."""
        with contextlib.suppress(OSError):
            write_text(self.traceback_path(lane), f"{hide_known_in(text)}\n")

    def stream_path(self, stream: str, lane: str) -> Path:
        """The lane's JSON lines of one stream."""
        return self.path / f"{stream}.{lane}.jsonl"

    def segment_path(self, table: str, lane: str, number: int) -> Path:
        """One segment of a table."""
        return self.path / f"{table}.{lane}.{number:06d}.bin"

    def table_paths(self, table: str, lane: str) -> _List[Path]:
        """The segments of a table that are there, in order."""
        found = [
            (int(match["segment"]), path)
            for path, match in self._files()
            if match["segment"] and not match["temporary"]
            and match["name"] == table and match["lane"] == lane
        ]  # fmt: skip
        return [path for _, path in sorted(found)]

    def tables(self, lane: str) -> _List[str]:
        """The names of the lane's tables."""
        files = self._files()
        return sorted({m["name"] for _, m in files if m["segment"] and m["lane"] == lane})

    def claim_lane(self, rank: int, pid: int) -> str:
        """Reserve a lane for a training process by making its (empty) ring file.

        ``r{rank}`` for the first process of a rank, ``r{rank}-p{pid}`` for a later one. A
        name counts as taken while any file of it is there: a drained ring is removed, but
        the rows of the first process must not be gone on with by the second.
        """
        for lane in _lane_names(rank, pid):
            ring = self.ring_path(lane)
            try:
                flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | BINARY
                os.close(os.open(ring, flags, mode_in(self.path)))
            except FileExistsError:
                continue
            except OSError as error:
                raise RunFolderError(
                    f"cannot make {ring.name}: {error.strerror}, in {self.path}; "
                    "choose another folder with --run-dir DIR"
                ) from error
            if any(m["lane"] == lane and not m["ring"] for _, m in self._files()):
                # Another process had this name, and its ring was drained and removed.
                ring.unlink()
                continue
            return lane
        raise AssertionError("unreachable: the names never run out")

    def remove_ring(self, lane: str) -> None:
        """Remove a ring that has been drained into the files; readers then use those alone."""
        self.ring_path(lane).unlink(missing_ok=True)

    def lacks_ring(self) -> bool:
        """Whether a process wanted to record and could not make its ring: a full disk."""
        # The claim is all that is left of it, and needs no space.
        return any(
            match["ring"] and not match["temporary"] and path.stat().st_size == 0
            for path, match in self._files()
        )

    # Leaving no clutter.

    def remove_dead_claims(self) -> None:
        """Remove what later processes left that were killed before they had a ring."""
        for lane in self.lanes():
            ring, pid = self.ring_path(lane), _lane_order(lane)[1]
            with contextlib.suppress(OSError):
                if pid > 0 and ring.stat().st_size == 0 and not psutil.pid_exists(pid):
                    ring.with_name(ring.name + TEMPORARY).unlink(missing_ok=True)
                    ring.unlink()

    def is_empty(self) -> bool:
        """True when no step was recorded and nothing found; damaged files count as content."""
        # Not above: with it comes numpy, before a script is started.
        from holdfast.run.table import read_header

        if any(path.name.startswith("traceback.") for path in _children(self.path)):
            return False
        for path, match in self._files():
            if match["temporary"]:
                continue
            try:
                if match["ring"]:
                    full = path.stat().st_size > 0 and _ring_has_rows(path)
                elif match["segment"]:
                    with open_regular(path) as file:
                        full = read_header(file, path).rows > 0
                else:
                    full = match["name"] == "findings" and path.stat().st_size > 0
            except (OSError, RunFolderError):
                return False
            if full:
                return False
        return True

    def recorded_paths(self) -> _List[Path]:
        """The files that holdfast recorded; run.json last: until it goes this is still a run."""
        frame = [path for path in _children(self.path) if _FRAME_FILE.fullmatch(path.name)]
        return [path for path, _ in self._files()] + frame

    def remove_if_empty(self) -> bool:
        """Delete the run if it recorded nothing: our own files, then folders left empty.

        A folder that was there before ``create`` stays, as do files we do not know.
        """
        if not self.is_empty():
            return False
        try:
            for path in self.recorded_paths():
                path.unlink(missing_ok=True)
        except OSError:
            return False
        _remove_folders((self.path,) if self._made is None else self._made)
        return True

    def _files(self) -> Iterator[tuple[Path, re.Match[str]]]:
        for path in _children(self.path):
            match = _FILE.fullmatch(path.name)
            if match is None or (match["ring"] and match["name"] != "ring"):
                continue
            if match["stream"] and match["name"] not in STREAMS:
                continue
            yield path, match


def rank_of(lane: str) -> int:
    """The rank whose process wrote a lane; ``ValueError`` if it is no lane's name."""
    return _lane_order(lane)[0]


def new_run_path(root: str | os.PathLike[str], script: str, when: datetime) -> Path:
    """A free path such as ``root/2026-11-15-1204-train``, with -2, -3, ... when taken."""
    stem = re.sub(r"\.(py|ipynb)$", "", Path(script).name)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-.")
    base = Path(root) / f"{when:%Y-%m-%d-%H%M}-{name[:60] or 'run'}"
    path, number = base, 1
    while os.path.lexists(path):
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    return path


def _read_meta(path: Path) -> dict[str, Any]:
    try:
        meta = jsonl.read_object(path / META)
    except FileNotFoundError as error:
        raise RunFolderError(
            f"{path} is not a run folder: it has no {META}; give the folder that holds one"
        ) from error
    except OSError as error:
        raise RunFolderError(
            f"cannot read {META}: {error.strerror}, in {path}; {remedy(error)}"
        ) from error
    except ValueError as error:
        raise RunFolderError(
            f"{META} is corrupt ({error}), in {path}; restore it or remove this run"
        ) from error
    if meta.get("format") != FORMAT:
        raise RunFolderError(
            f"{META} has format {meta.get('format')!r}, this holdfast reads {FORMAT}, in {path}; "
            "read it with the version that wrote it: pip install --upgrade holdfast"
        )
    return meta


def _pretty(meta: Mapping[str, Any]) -> bytes:
    return jsonl.encode(hide_known_in(meta), indent=2) + b"\n"


def _children(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RunFolderError(
            f"cannot list {path}: {error.strerror}; check the permissions of this folder"
        ) from error


def _missing(path: Path) -> Iterator[Path]:
    # os.path, not pathlib: that one raises where a folder above may not be entered.
    while not os.path.exists(path) and path != path.parent:
        yield path
        path = path.parent


def ignore_runs(root: Path) -> None:
    """Keep a folder of runs out of the user's repository; not being able to harms nothing."""
    with contextlib.suppress(OSError):
        replace_file(root / _IGNORE, _ALL, exclusive=True, mode=0o666)


def _remove_folders(paths: tuple[Path, ...]) -> None:
    with contextlib.suppress(OSError):  # rmdir refuses a folder that holds anything
        for path in paths:
            ignored = os.listdir(path) == [_IGNORE] and read_regular(path / _IGNORE, 99) == _ALL
            if ignored:
                (path / _IGNORE).unlink()
            try:
                path.rmdir()
            except OSError:
                if ignored:  # another run has begun in it meanwhile
                    ignore_runs(path)
                raise


def _ring_has_rows(path: Path) -> bool:
    ring = Ring.attach(path, readonly=True)
    try:
        return any(kind >= 16 for kind, _ in ring.peek())
    finally:
        ring.detach()


def _lane_names(rank: int, pid: int) -> Iterator[str]:
    yield f"r{rank}"
    yield f"r{rank}-p{pid}"
    number = 2
    while True:  # a process that claims twice, or a process id that came round again
        yield f"r{rank}-p{pid}-{number}"
        number += 1


def _lane_order(lane: str) -> tuple[int, int, int]:
    match = _LANE.fullmatch(lane)
    if match is None:
        raise ValueError(f"{lane!r} is not a lane; lanes look like r0 or r0-p4242")
    rank, pid, number = match.groups()
    return int(rank), int(pid or -1), int(number or 0)


def _age(run: Run) -> tuple[float, list[tuple[int, str]]]:
    try:
        created = datetime.fromisoformat(str(run.meta.get("created"))).timestamp()
    except ValueError:
        created = 0.0
    # Names of one minute end in -2, -10: compare the numbers in them as numbers.
    parts = re.findall(r"\d+|\D+", run.path.name)
    return created, [(int(p), "") if p.isdigit() else (-1, p) for p in parts]
