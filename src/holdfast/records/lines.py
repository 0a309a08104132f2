"""Kinds of events that say what lines of the script cost: the step, its loader, its reads.

A place (file and line) is written once in an event and referred to by its number in ``places``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Literal, Self

from .base import Kind, Record, RecordError

Numbers = tuple[int, ...]


# ---------------------------------------------------------------------- parts of an event


class StepPace(Record):
    """Seconds of a run's steps when an event was recorded."""

    fastest_block: float
    """Median of the fastest eight consecutive steps."""
    last_block: float
    """Median of the last eight steps."""
    typical: float
    """Typical recent step without a stall."""
    waiting: float
    """Share of the last steps that was spent waiting for data."""
    busier: bool
    """Whether the processor is busier than in the fastest block."""
    seconds: float
    """All steps, but the first ones and the beginning of epochs."""


class CodePlace(Record):
    """A line of the script, and what the source says there."""

    at: tuple[int, int]
    """Number of its file, and the line."""
    first: int
    """The first line of the statement."""
    code: str
    """The statement, shortened."""
    calls: tuple[str, ...]
    """Dotted names of what the statement calls."""
    loop: tuple[int, int] = (0, 0)
    """First and last line of the loop that it starts or is in; zeros for none."""


class LineCost(Record):
    """What one line costs in a step; of a loader with workers, in a sample."""

    path: Numbers
    """Places of the lines that led here, outermost first, itself last."""
    function: str
    """The function that it is in."""
    mark: str
    """``fetch``, ``model``, ``backward``, ``optimizer`` or "" for the loop's own work."""
    direct: bool
    """Whether the line's own code took the time, not the model or the optimizer it called."""
    seconds: float
    """That it takes."""
    hits: float
    """How often it is passed."""
    cache: int | None = None
    """Place of the line on the way to it that asks a cache."""


class StepCounts(Record):
    """What explains a slower step; all are 0 where they were not counted."""

    parameters: int = 0
    """That have gradients."""
    registered: int = 0
    """Hooks on the models and their weights, and modules in them."""
    registered_before: float = 0.0
    """The same when they were counted last; earlier versions wrote a whole number as 0.0."""
    retries: int = 0
    """How often the device's allocator has run out so far."""
    delayed: float = 0.0
    """Seconds in a step in which a thread of the process stood in line for a processor."""


class TimedStep(StepCounts):
    """The lines of a step of one kind."""

    seconds: float
    """Of the step."""
    per_model: float
    """Numbers in the inputs of one call of a model."""
    lines: tuple[LineCost, ...]
    """Those that take most of it, and those that lead to the models and optimizers."""


class TimedLoop(Record):
    """The loop that takes the steps, and the one around it."""

    path: Numbers
    """Places of the call stack down to the line that takes the step."""
    loop: tuple[int, int, int]
    """Index in ``path`` of the line that stands in the loop, first and last line of the loop."""
    outer: tuple[int, int, int]
    """The same of the loop around it, as of epochs; the same loop where there is none."""


class ReadingLine(Record):
    """A line that reads tensors on the host."""

    path: Numbers
    """Its place, the last one."""
    function: str
    """The function that it is in."""
    read: str
    """Which way: ``item``, ``tolist``, ``__bool__``, ..."""
    direct: bool = False
    """Whether the line reads by itself, not a library that it calls; false where records of earlier
    versions do not say."""
    count: int
    """Reads in the step."""
    seconds: float
    """In the reads alone."""
    loop_seconds: float
    """In the line with the loop around it; in the line alone where that is the loop of steps."""


# ---------------------------------------------------------------------- kinds


class CodePlaces(Kind):
    """Base of the kinds that name lines of the script by their numbers."""

    files: tuple[str, ...]
    """Files of the places, as seen from the working directory."""
    places: tuple[CodePlace, ...]
    """All places that the event names."""
    source: tuple[tuple[tuple[int, str], ...], ...] = ()
    """Of each file the lines around its places; empty in records of earlier versions."""

    def paths(self) -> Iterable[Numbers]:
        """Numbers of places, as they are referred to; a path of none is no path."""
        return ()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read plain data back; a number of no place is a ``RecordError``, too."""
        reported = super().from_dict(data)
        known, files = range(len(reported.places)), range(len(reported.files))
        if any(
            not path or any(number not in known for number in path) for path in reported.paths()
        ):
            raise RecordError(f"{cls.kind}: a line without a place")
        if any(place.at[0] not in files for place in reported.places):
            raise RecordError(f"{cls.kind}: a place without a file")
        if reported.source and len(reported.source) != len(reported.files):
            raise RecordError(
                f"{cls.kind}: the source of {len(reported.source)} of {len(files)} files"
            )
        return reported


Purpose = Literal["reference", "look", "waits", "slow", "stall"]


class TimedLines(CodePlaces, kind="line_times"):
    """A few steps whose lines were timed."""

    look: Purpose
    """What for: ``reference`` (the first steps), ``look`` (without a symptom), ``waits``, ``slow``
    or ``stall``."""
    rare: bool
    """Whether only the few steps that waited long were timed."""
    times: StepPace
    """Of the run so far."""
    batch: int
    """Samples in a batch of the loader; 1 where it does not say."""
    cores: int = 0
    """That the process may use; 0 in records of earlier versions."""
    passes: int
    """Over the data, this one included."""
    turn: TimedLoop | None
    """The loop; None where no line of the script takes the steps."""
    now: TimedStep
    """The steps that were timed."""
    baseline: TimedStep | None = None
    """Ordinary steps, beside those of ``slow`` and ``stall``."""
    stalls: tuple[tuple[int, float, bool], ...] = ()
    """Stalls among the last hundred steps: the step, seconds above a typical one, and whether it
    begins an epoch."""
    feeds: Numbers = ()
    """Places of lines that make what a backward pass goes through, as the source says."""
    registering: Numbers = ()
    """Places of lines that register hooks or parametrizations."""
    history: tuple[tuple[int, str], ...] = ()
    """Places of lines, and what each reads, or a line that leads to it, and the source lets
    grow."""
    ranks: int = 1
    """That train together, and wait for each other in backward."""

    def paths(self) -> Iterable[Numbers]:
        """Of its lines, its loop and what the source says."""
        steps = [self.now, *(() if self.baseline is None else (self.baseline,))]
        if self.turn is not None:
            yield self.turn.path
        yield from _paths(chain.from_iterable(step.lines for step in steps))
        yield from zip((*self.feeds, *self.registering, *(place for place, _ in self.history)))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read plain data back; a loop at no line of its path is a ``RecordError``, too."""
        reported = super().from_dict(data)
        turn = reported.turn
        if turn is not None and not all(
            0 <= depth < len(turn.path) for depth, *_ in (turn.loop, turn.outer)
        ):
            raise RecordError(f"{cls.kind}: turn: a loop at none of {len(turn.path)} places")
        return reported


class TimedLoader(CodePlaces, kind="loader_times"):
    """Why the workers of a loader are slow, when a batch has come late."""

    rare: bool
    """Whether few waits make most of the waiting."""
    times: StepPace
    """Of the run so far."""
    workers: int
    """Of the loader."""
    passes: int
    """Over the data, this one included."""
    samples: int
    """That were timed; 0 where nobody has seen any."""
    per_sample: float
    """Seconds for one, on average."""
    made: float | None = None
    """Seconds in which a worker makes a batch; None where it is not known."""
    cores: int = 0
    """That the process may use; 0 in records of earlier versions."""
    slowest: tuple[str | None, float]
    """Index of the slowest sample (None where samples have none), and its seconds."""
    lines: tuple[LineCost, ...]
    """Of the dataset, the most expensive first."""
    asks: LineCost
    """The line that asks the loader for its batches."""
    may_fetch: bool
    """Whether samples may be made again in the main process, to time them."""

    def paths(self) -> Iterable[Numbers]:
        """Of its lines."""
        return _paths((*self.lines, self.asks))


class TensorReads(CodePlaces, kind="tensor_reads"):
    """Reads of tensors on the host, in one step."""

    reads: tuple[ReadingLine, ...]
    """The lines that read most, the first one most often."""
    models: float
    """Calls of models in such a step."""
    step_seconds: float
    """Of such a step."""
    times: StepPace
    """Of the run so far."""

    def paths(self) -> Iterable[Numbers]:
        """Of the lines that read."""
        return (read.path for read in self.reads)


def _paths(lines: Iterable[LineCost]) -> Iterable[Numbers]:
    for line in lines:
        yield line.path
        if line.cache is not None:
            yield (line.cache,)
