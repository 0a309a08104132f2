"""Follows a run folder and hands what is new to a sink.

A tracker reads as any reader does: while the run is recorded or after it, in a process of its
own. What a sink has got is remembered in ``RUN/track/SINK.json``, so that another call goes on
behind it. Only the first rank is followed; the others record the same numbers.
"""

from __future__ import annotations

import dataclasses
import os
import stat
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..config import TrackSettings
from ..errors import RunFolderError
from ..records.trainer import EpochBegins, TrainingEnded
from ..redaction import redact_text
from ..report import summarize
from ..run import (
    LaneData,
    LaneReader,
    Run,
    Tail,
    encode,
    rank_of,
)
from ..run.durable import replace_file
from ..run.jsonl import read_object
from ..types import Event
from ._reading import (
    SETTINGS_FILE,
    RowWindows,
    about_run,
    finding_note,
    note_of,
    points_of,
)
from .base import LARGEST, Ending, Note, Point, Progress, Sink

_PICTURES = {".png", ".svg", ".pdf", ".jpg"}
_FILES = {".csv", *_PICTURES}


class Tracker:
    """One run, one sink.

    Args:
        run: the folder.
        sink: who gets it.
        settings: how many steps make a point, and what the run is called.
        fresh: forget what the sink got before.
    """

    def __init__(
        self, run: Run, sink: Sink, settings: TrackSettings, *, fresh: bool = False
    ) -> None:
        _refuse_links(run.track_folder, run.path / sink.target)
        self.sink = sink
        self._run, self._settings = run, settings
        self._path = run.track_folder / f"{sink.kind}.json"
        saved = Progress() if fresh else _read(self._path)
        self._at = saved if saved.target == sink.target else Progress(target=sink.target)
        self._lanes: dict[str, _Lane] = {}
        self._points: list[Point] = []
        self._notes: list[Note] = []
        self._started = False

    def poll(self) -> int:
        """Hand over what is new in the files of a run that goes on; the number of points."""
        return self._hand_over(ended=False)

    def finish(self) -> int:
        """Hand over everything that is left, also of a run that was killed, and how it ended."""
        count = self._hand_over(ended=True)
        left = self._at.lanes and (not self._at.ended or self.sink.waiting)
        if self._started or left:
            self._begin()
            self.sink.end(self._ending())
            self._at.ended = True
            self._save()
        return count

    def close(self) -> None:
        """Let go of the sink."""
        self.sink.close()

    def _hand_over(self, *, ended: bool) -> int:
        trained = bool(self._at.lanes)
        for name in self._run.lanes():
            if rank_of(name) == 0:
                lane = self._lane(name)
                found = lane.read(ended=ended)
                trained = trained or len(found.steps) > 0
                self._points += lane.points(found, partial=ended)
                self._notes += self._findings(found)
                reported = map(note_of, found.events)
                self._notes += [note for note in reported if note is not None]
        # A script that does not train leaves no folder, and nothing in a tracker.
        if not trained or (self._at.lanes and not self._points and not self._notes):
            return 0
        self._begin()
        points, notes = _merged(self._points), sorted(self._notes, key=lambda note: note.step)
        self.sink.write(points, notes)
        self._points, self._notes = [], []
        self._at.lanes |= {name: lane.at for name, lane in self._lanes.items()}
        self._save()
        return len(points)

    def _lane(self, name: str) -> _Lane:
        if name not in self._lanes:
            at = self._at.lanes.get(name, {})
            self._lanes[name] = _Lane(LaneReader(self._run, name), dict(at), self._settings.every)
        return self._lanes[name]

    def _begin(self) -> None:
        if self._started:
            return
        self._started, self._at.ended = True, False
        events = self._events()
        times = [event.time for event in events if event.kind == "start"]
        about = about_run(
            self._run,
            events,
            experiment=self._settings.experiment,
            name=self._settings.name,
            began=min(times, default=time.time()),
        )
        self._run.track_folder.mkdir(exist_ok=True)
        self.sink.begin(about, self._at.own)
        self._save()

    def _events(self) -> list[Event]:
        """Everything that happened so far on the first rank."""
        lanes = [lane for lane in self._run.lanes() if rank_of(lane) == 0]
        return [event for lane in lanes for event in LaneReader(self._run, lane).events()]

    def _findings(self, found: LaneData) -> Iterable[Note]:
        for finding in found.findings:
            key = "/".join(map(str, finding.key))
            if key not in self._at.findings:
                self._at.findings.append(key)
                yield finding_note(finding, time.time())

    def _ending(self) -> Ending:
        run = self._run = Run.open(self._run.path)
        summary = summarize(run)
        ends = ((event.time, TrainingEnded.of(event)) for event in self._events())
        reported = [(time, ended.why) for time, ended in ends if ended is not None]
        word, reason = summary.outcome, summary.ending.line
        if word == "finished" and reported:
            _, reason = max(reported, key=lambda one: one[0])
        if word in ("running", "unfinished"):
            word, reason = "killed", "killed: the training process is gone and left no word"
        tags = {
            "holdfast.outcome": word,
            "holdfast.end_reason": reason,
            "holdfast.findings": ", ".join(dict.fromkeys(f.code for f in summary.findings)),
            "holdfast.actions": "; ".join(f"{a.what} ({a.when})" for a in summary.actions_taken),
        }
        files = sorted(_files(run.path))
        return Ending(
            word=word,
            time=max((lane.last for lane in self._lanes.values()), default=time.time()),
            tags={key: redact_text(value)[:500] for key, value in tags.items()},
            files=files,
            pictures=[path for path in files if path.suffix == ".png"],
        )

    def _save(self) -> None:
        replace_file(self._path, encode(dataclasses.asdict(self._at)))


class _Lane:
    """One lane: its tail while it is written, the whole of it at the end."""

    def __init__(self, reader: LaneReader, at: dict[str, int], every: int) -> None:
        self._reader = reader
        self._tail: Tail = reader.tail()
        self._passed = 0  # events that the tail has given
        self.at = {"step": -1, "events": 0, "epoch": 0, "skipped": 0} | at
        self._windows = RowWindows(every, self.at["step"], self.at["skipped"])
        self.last = 0.0

    def read(self, *, ended: bool) -> LaneData:
        """What is new; at the end with what nobody has drained."""
        known = self.at["events"]
        if ended:
            data = self._reader.read(tables=("steps",))
            fresh = data.events[known:]
            self.at["events"] = max(known, len(data.events))
        else:
            data = self._tail.poll()
            fresh = data.events[max(0, known - self._passed) :]
            self._passed += len(data.events)
            self.at["events"] = max(known, self._passed)
        return dataclasses.replace(data, events=fresh)

    def points(self, found: LaneData, *, partial: bool) -> list[Point]:
        """Rows and events as points, with the epoch that each belongs to."""
        if len(found.steps):
            self._windows.add(found.steps)
            self.last = float(found.steps["time"][-1])
        begins = [
            (event.step, one.epoch)
            for event in found.events
            if (one := EpochBegins.of(event)) is not None
        ]
        windows = self._windows.take(partial=partial)
        points = [self._in_epoch(point, begins) for point in windows]
        points += [point for event in found.events for point in points_of(event)]
        self.at |= {"step": self._windows.step, "skipped": self._windows.skipped}
        if begins:
            self.at["epoch"] = begins[-1][1]
        return points

    def _in_epoch(self, point: Point, begins: Sequence[tuple[int, int]]) -> Point:
        epoch = self.at["epoch"]
        for step, number in begins:
            if step < point.step:
                epoch = number
        if not epoch:
            return point
        return dataclasses.replace(point, values={**point.values, "epoch": float(epoch)})


def _refuse_links(*folders: Path) -> None:
    """Nothing is written through a link: a run from somebody else may have one to any folder."""
    for folder in folders:
        if folder.is_symlink():
            raise RunFolderError(
                f"{folder.name} is a link to {os.readlink(folder)}, in {folder.parent}; nothing is "
                "written through links: remove it or put the folder itself there"
            )


def _merged(points: Iterable[Point]) -> list[Point]:
    """One point for each step, in order."""
    found: dict[int, Point] = {}
    for point in sorted(points, key=lambda one: (one.step, one.time)):
        former = found.get(point.step)
        values = {**(former.values if former is not None else {}), **point.values}
        found[point.step] = dataclasses.replace(point, values=values)
    return list(found.values())


def _files(folder: Path) -> Iterable[Path]:
    """Pictures, tables, the report and the settings; no checkpoints."""
    named = {folder / SETTINGS_FILE, folder / "report.html", folder / "run.json"}
    for path in folder.rglob("*"):
        own = path.relative_to(folder).parts[0]
        wanted = path in named or path.suffix in _FILES
        if own in ("checkpoints", "tensorboard") or not wanted:
            continue
        # What a link leads to is not of this run, and might be anything that the user may read.
        about = path.lstat()
        if stat.S_ISREG(about.st_mode) and about.st_size <= LARGEST:
            yield path


def _read(path: Path) -> Progress:
    try:
        data: dict[str, Any] = read_object(path)
        return Progress(**data)
    except FileNotFoundError:
        return Progress()
    except (OSError, ValueError, TypeError) as error:
        raise RunFolderError(
            f"cannot read {path}: {error}; remove it to hand the whole run over again"
        ) from error
