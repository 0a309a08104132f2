"""A folder of checkpoints: which there are, which can be trusted, which may go.

Looking costs a few small reads: records are proven whole, data files only measured. ``latest``
and ``Entry.checked`` read a data file to its end and prove it. No torch.

    >>> CheckpointStore("runs/none/checkpoints").latest() is None
    True
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from holdfast.checkpoint.record import (
    DATA,
    FOLDER_NAME,
    INDEX,
    LAST,
    NAME,
    RECORD,
    RUN,
    SECOND,
    check_size,
    data_path,
    file_name,
    folder_name,
    read_record,
    record_path,
    verify,
)
from holdfast.errors import CheckpointError, DamagedCheckpointError
from holdfast.run.durable import TEMPORARY, make_folder

FOLDER = "checkpoints"
"""Where the checkpoints of a run are, in its folder."""

# A writer touches its temporary file many times a second; one left alone so long has no writer.
_ABANDONED = 3600.0
_STARTED = time.time()
_TEMPORARY = re.compile(
    rf"{NAME.pattern}(?:{re.escape(SECOND)})?\.(?:safetensors|json)\.(?P<pid>\d+)"
    rf"{re.escape(TEMPORARY)}"
)
_OF_A_RANK = re.compile(
    rf"r\d+(?:{re.escape(DATA)}|{re.escape(RECORD)})(?:{re.escape(TEMPORARY)})?"
)
_TEMPORARY_FOLDER = re.compile(rf"step-\d{{10,}}\.(?P<token>\w+)-\d+{re.escape(TEMPORARY)}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One checkpoint of one rank; ``damage`` says why it must not be used."""

    path: Path
    step: int
    rank: int = 0
    damage: str = ""
    record: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def good(self) -> bool:
        """Whole, and of a run that was well when it was saved."""
        return not self.damage and self.record.get("good") is True

    @property
    def bytes(self) -> int:
        """How large its data file is by its record."""
        return int(self.record.get("bytes", 0))

    @property
    def world(self) -> int:
        """How many ranks there were."""
        return int(self.record.get("world", 1))

    @property
    def shared(self) -> bool:
        """Whether it is the folder of a checkpoint over ranks, which belongs to all of them."""
        return FOLDER_NAME.fullmatch(self.path.name) is not None

    @property
    def metrics(self) -> list[str]:
        """The names of the numbers saved with it."""
        found: Any = self.record.get("metrics")
        return [str(name) for name in found] if isinstance(found, Mapping) else []

    def metric(self, name: str) -> float:
        """One of the numbers saved with it, NaN when it has none of that name."""
        try:
            return float(self.record["metrics"][name])
        except (KeyError, TypeError, ValueError):
            return math.nan

    def checked(self) -> Self:
        """The same after reading it to its end, with ``damage`` if that shows any."""
        try:
            if not self.damage:
                verify(self.path)
        except CheckpointError as error:
            return replace(self, damage=_why(error))
        return self

    @property
    def ours(self) -> bool:
        """Whether it bears a name that we give: a record from elsewhere may name any file."""
        stem = self.path.name.removesuffix(DATA).removesuffix(SECOND)
        return self.shared or (self.path.suffix == DATA and NAME.fullmatch(stem) is not None)

    def remove(self) -> None:
        """Delete its files, and no others; ``OSError`` if that cannot be."""
        if self.path.is_symlink() and self.shared:
            self.path.unlink()
            return
        if self.shared:
            record_path(self.path).unlink(missing_ok=True)  # what is left is no checkpoint
            for path in self.path.iterdir():
                if _OF_A_RANK.fullmatch(path.name):
                    path.unlink()
            with contextlib.suppress(OSError):  # somebody has put a file of theirs beside
                self.path.rmdir()
            return
        # The data first: a record without data is small and seen to be one.
        record = record_path(self.path)
        for path in (self.path, record):
            path.unlink(missing_ok=True)


class CheckpointStore:
    """The checkpoints in one folder, which need not exist yet."""

    def __init__(self, folder: str | os.PathLike[str], *, whose: Path | None = None) -> None:
        self.folder = Path(folder)
        self.whose = {} if whose is None else {RUN: str(whose.resolve())}
        """What each record says in a folder outside of its run, which alone may remove it."""

    def __repr__(self) -> str:
        return f"CheckpointStore({str(self.folder)!r})"

    def path(self, step: int, rank: int = 0) -> Path:
        """Where the checkpoint of a step goes."""
        return self.folder / file_name(step, rank)

    def folder_path(self, step: int) -> Path:
        """Where the checkpoint of a step over ranks goes."""
        return self.folder / folder_name(step)

    def entries(self, rank: int | None = None) -> list[Entry]:
        """Every checkpoint by step and rank, damaged ones and those without a record marked."""
        files = self._files()
        found = [entry_at(path) for path in files if _is(path, RECORD)]
        recorded = {record_path(entry.path).stem for entry in found}
        found += [
            entry_at(path) for path in files
            if _is(path, DATA) and path.stem.removesuffix(SECOND) not in recorded
        ]  # fmt: skip
        found += [entry_at(path) for path in files if FOLDER_NAME.fullmatch(path.name)]
        own = (entry for entry in found if rank in (None, entry.rank))
        return sorted(own, key=_order)

    def newest(self) -> Entry | None:
        """The checkpoint of the highest step whose record is whole, good or not.

        For lists: one record is read where ``entries`` reads all of them, and no data.
        """
        files = self._files()  # names sort by step
        records = [p for p in files if _is(p, RECORD) or FOLDER_NAME.fullmatch(p.name)]
        found = map(entry_at, reversed(records))
        return next((entry for entry in found if not entry.damage), None)

    def resumable(self) -> bool:
        """Whether there is more here than the state that a run ended with."""
        return any(entry.record.get("kind") != LAST for entry in self.entries())

    def latest(
        self,
        *,
        rank: int = 0,
        good: bool = True,
        refused: Callable[[Entry], object] | None = None,
        but: str = "",
    ) -> Entry | None:
        """The newest checkpoint that is proven whole, None when there is none.

        ``refused`` is told of every damaged one that was passed over, newest first. Those of the
        kind ``but`` do not count. A step
        counts when every rank that has checkpoints here has it (ranks of a world of the same
        size): ranks must not go on from different steps because one was killed before it saved.
        """
        everything = [one for one in self.entries() if not but or one.record.get("kind") != but]
        for entry in reversed(
            [entry for entry in everything if entry.rank == rank or entry.shared]
        ):
            entry = entry.checked() if entry.good or not good else entry
            if entry.damage:
                if refused is not None:
                    refused(entry)
            elif (entry.good or not good) and _on_all_ranks(entry, everything):
                return entry
        return None

    def best(
        self,
        metric: str = "loss",
        mode: Literal["min", "max"] = "min",
        *,
        rank: int = 0,
        proven: bool = False,
    ) -> Entry | None:
        """The good checkpoint with the best value of a metric; the newer one of equals.

        With ``proven`` it is read to its end, and all ranks must have its step, as in ``latest``.
        """
        everything = self.entries()
        own = [entry for entry in everything if entry.rank == rank or entry.shared]
        for entry in _ranked(own, metric, mode):
            if not proven or (_on_all_ranks(entry, everything) and not entry.checked().damage):
                return entry
        return None

    def prune(
        self,
        last: int,
        best: int = 0,
        metric: str = "loss",
        mode: Literal["min", "max"] = "min",
        dry_run: bool = False,
        *,
        rank: int | None = None,
        damaged: bool = False,
        sure: Collection[Path] = (),
        which: Callable[[Entry], bool] = lambda entry: True,
    ) -> list[Entry]:
        """Remove all but the ``last`` newest and the ``best`` best of each rank; return those.

        The newest good one always stays: it is read to its end first, unless its path is in
        ``sure``. Where no good one is left, nothing is removed. Damaged ones go only with
        ``damaged``, and of all only ``which`` are meant and bear a name that we give.
        """
        everything = [entry for entry in self.entries(rank) if entry.ours and which(entry)]
        gone: list[Entry] = []
        for one in sorted({entry.rank for entry in everything}):
            own = [entry for entry in everything if entry.rank == one]
            gone += _spare(own, last, best, metric, mode, damaged, sure)
        for entry in () if dry_run else gone:
            try:
                entry.remove()
            except OSError as error:
                raise CheckpointError(
                    f"cannot remove {entry.path.name}: {error.strerror}, in {self.folder}; "
                    "check the permissions"
                ) from error
        return gone

    def open_for_writing(self, rank: int = 0) -> None:
        """Make the folder, and remove what dead writers of this rank have left half written."""
        try:
            make_folder(self.folder)
        except OSError as error:
            raise CheckpointError(
                f"cannot make the folder {self.folder}: {error.strerror}; choose another with "
                "--set checkpoint.dir=DIR"
            ) from error
        for path in self._leftovers(rank):
            with contextlib.suppress(OSError):
                path.unlink()

    def remove_leftover_folders(self, rank: int, token: str) -> None:
        """Remove what saves of all ranks in earlier lives of the run have left half written.

        One rank does it for all; folders of this life have ``token`` in their names.
        """
        for path in self._files() if rank == 0 else ():
            match = _TEMPORARY_FOLDER.fullmatch(path.name)
            if match and match["token"] != token and _is_of_an_earlier_life(path):
                shutil.rmtree(path, ignore_errors=True)

    def _leftovers(self, rank: int) -> Iterator[Path]:
        for path in self._files():
            match = _TEMPORARY.fullmatch(path.name)
            if match and int(match["rank"]) == rank and _has_no_writer(path, int(match["pid"])):
                yield path
        for entry in self.entries(rank):
            if not entry.record:
                continue
            record = record_path(entry.path)
            spare: list[Path] = []
            if not entry.path.exists():
                spare = [record]  # removing it was cut short
            elif not entry.damage:
                # A save of the same step was cut short before its record, or just after it.
                names = (f"{record.stem}{DATA}", f"{record.stem}{SECOND}{DATA}")
                spare = [record.with_name(name) for name in names if name != entry.path.name]
            yield from filter(_is_of_an_earlier_life, spare)

    def _files(self) -> list[Path]:
        try:
            return sorted(self.folder.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise CheckpointError(
                f"cannot list {self.folder}: {error.strerror}; check the permissions"
            ) from error


def entry_at(path: Path) -> Entry:
    """What can be said of a checkpoint, given by a file or its folder, without reading its data."""
    path = path.parent if path.name == INDEX else path
    name = NAME.match(path.name)
    step, rank = (int(name["step"]), int(name["rank"])) if name else (-1, 0)
    record: dict[str, Any] = {}
    data = path.with_suffix(DATA)
    if folder := FOLDER_NAME.fullmatch(path.name):
        step, data = int(folder["step"]), path
    try:
        record = read_record(path)
        data = data_path(record_path(path), record)
        check_size(data, record)
        return Entry(data, int(record["step"]), int(record["rank"]), record=record)
    except CheckpointError as error:
        return Entry(data, step, rank, _why(error), record)


def _why(error: CheckpointError) -> str:
    return error.why if isinstance(error, DamagedCheckpointError) else str(error)


def _is(path: Path, suffix: str) -> bool:
    stem = path.stem.removesuffix(SECOND) if suffix == DATA else path.stem
    return path.suffix == suffix and NAME.fullmatch(stem) is not None


def _order(entry: Entry) -> tuple[Any, ...]:
    """By step and rank; the older one of two folders of a step has the second name."""
    return entry.step, entry.rank, not entry.path.name.endswith(SECOND), entry.path.name


def _on_all_ranks(entry: Entry, everything: Iterable[Entry]) -> bool:
    """Whether every rank that has checkpoints here, in a world of that size, has this step."""
    if entry.shared:
        return True
    whole = [other for other in everything if not other.damage and not other.shared]
    ranks = {other.rank for other in whole if other.world == entry.world}
    return ranks <= {other.rank for other in whole if other.step == entry.step}


def _ranked(entries: Iterable[Entry], metric: str, mode: str) -> list[Entry]:
    """The good ones that have a finite value of the metric, best first, newer before older."""
    sign = 1 if mode == "min" else -1
    known = [entry for entry in entries if entry.good and math.isfinite(entry.metric(metric))]
    return sorted(known, key=lambda entry: (sign * entry.metric(metric), -entry.step))


def _spare(
    entries: list[Entry],
    last: int,
    best: int,
    metric: str,
    mode: str,
    damaged: bool,
    sure: Collection[Path],
) -> list[Entry]:
    """The entries of one rank that may go."""
    whole = [entry for entry in entries if not entry.damage]
    broken = [entry for entry in entries if entry.damage]
    proven: Entry | None = None
    for entry in reversed([entry for entry in whole if entry.good]):
        checked = entry if entry.path in sure else entry.checked()
        if not checked.damage:
            proven = entry
            break
        whole.remove(entry)
        broken.append(checked)
    if proven is None:
        return []
    keep = [proven, *whole[max(0, len(whole) - last) :], *_ranked(whole, metric, mode)[:best]]
    lists: list[Any] = [one.record.get("needs") for one in keep]
    needed = {str(name) for names in lists if isinstance(names, list) for name in names}
    keep += [entry for entry in whole if entry.path.name in needed]
    return [entry for entry in whole if entry not in keep] + (broken if damaged else [])


def _is_of_an_earlier_life(path: Path) -> bool:
    """Not touched since this process began: another writer in it may be at work right now."""
    try:
        return path.stat().st_mtime < _STARTED
    except OSError:
        return False


def _has_no_writer(path: Path, pid: int) -> bool:
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > _ABANDONED:
            return True
    if pid == os.getpid():  # in a container ids come round again
        return _is_of_an_earlier_life(path)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
