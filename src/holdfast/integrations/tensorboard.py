"""Event files for TensorBoard, in ``RUN/tensorboard``; torch is not needed.

tensorboard --logdir runs
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto import (
    event_pb2,
    summary_pb2,
    tensor_pb2,
    tensor_shape_pb2,
    types_pb2,
)
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from ..regular_files import read_regular
from ..run import Run
from .base import LARGEST, About, Ending, Note, Point

# Made while they are imported: no type checker knows what these modules hold.
_events: Any = event_pb2
_summaries: Any = summary_pb2
_tensors: Any = tensor_pb2
_shapes: Any = tensor_shape_pb2
_types: Any = types_pb2
_Summary: Any = _summaries.Summary

FOLDER = "tensorboard"
_PNG = b"\x89PNG\r\n\x1a\n"
_RGB = 3


class TensorboardSink:
    """One event file for each call that has something to add."""

    kind = "tensorboard"
    waiting = False

    def __init__(self, run: Run) -> None:
        self._folder = run.path / FOLDER
        self.target = FOLDER
        self._writer: EventFileWriter | None = None
        self._last = 0

    def begin(self, about: About, own: dict[str, Any]) -> None:
        """Open a file; the parameters are told once."""
        self._writer = EventFileWriter(str(self._folder), flush_secs=5)
        if not own.get("begun"):
            own["begun"] = True
            self._add(_text("parameters", _table(about.params)), 0, about.began)

    def write(self, points: Sequence[Point], notes: Sequence[Note]) -> None:
        """Numbers as scalars, notes as text."""
        for point in points:
            values = [_Summary.Value(tag=k, simple_value=v) for k, v in point.values.items()]
            self._add(_Summary(value=values), point.step, point.time)
            self._last = max(self._last, point.step)
        for note in notes:
            self._add(_text(note.kind, note.text), note.step, note.time)
        self._flush()

    def end(self, ending: Ending) -> None:
        """Pictures, and how it ended."""
        for path in ending.pictures:
            picture = _picture(path)
            if picture is not None:
                self._add(picture, self._last, ending.time)
        self._add(_text("end", _table(ending.tags)), self._last, ending.time)
        self._flush()

    def close(self) -> None:
        """Write what waits, and let go of the file."""
        if self._writer is not None:
            self._writer.close()

    def _add(self, summary: Any, step: int, at: float) -> None:
        assert self._writer is not None  # begin comes first
        self._writer.add_event(
            _events.Event(step=step, wall_time=at or time.time(), summary=summary)
        )

    def _flush(self) -> None:
        assert self._writer is not None
        self._writer.flush()


def _text(tag: str, text: str) -> Any:
    plugin = _summaries.SummaryMetadata.PluginData(plugin_name="text")
    about = _summaries.SummaryMetadata(plugin_data=plugin)
    shape = _shapes.TensorShapeProto(dim=[_shapes.TensorShapeProto.Dim(size=1)])
    tensor = _tensors.TensorProto(
        dtype=_types.DT_STRING, string_val=[text.encode()], tensor_shape=shape
    )
    return _Summary(value=[_Summary.Value(tag=tag, metadata=about, tensor=tensor)])


def _table(values: Mapping[str, str]) -> str:
    """Markdown, which TensorBoard shows as a table."""
    rows = [f"| {key} | {value.replace('|', '/')} |" for key, value in values.items()]
    return "\n".join(["| | |", "|---|---|", *rows])


def _picture(path: Path) -> Any:
    """A PNG as it is; its header has the size."""
    data = read_regular(path, LARGEST)
    if data[:8] != _PNG or len(data) < 24:
        return None
    width, height = struct.unpack(">II", data[16:24])
    image = _Summary.Image(height=height, width=width, colorspace=_RGB, encoded_image_string=data)
    return _Summary(value=[_Summary.Value(tag=f"pictures/{path.stem}", image=image)])
