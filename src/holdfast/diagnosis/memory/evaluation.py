"""Detect evaluations that build graphs: after ``eval()``, or where a step makes far too many nodes.

The number of the next graph node stands still under ``no_grad``. Where it moves between ``eval()``
and ``train()``, without a backward pass or a call of ``autograd.grad``, and the next loss does not
lead there either, the graphs were unused. Which line did it is seen by following the lines for some
milliseconds, in the first evaluations only.

An evaluation that does not call ``eval()`` shows by many more nodes than a typical step makes,
before a loss that does not lead to them; its line is looked for where the next one is due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from ...records.base import Kind
from ...records.memory import EvaluationGraphs
from ..dynamo import compilations
from ..watchpoint import ValueChange, Watchpoint
from . import unused_graphs
from .graphs import now, touches

# Evaluations whose lines are followed, and for how long each.
_FOLLOWED = 3
_SECONDS = 0.25
# Nodes that make a graph of a model; a mean of some parameters is none.
_NODES = 3
# Times the nodes of a typical step, and nodes, that are too many; steps until that is known.
_MANY = 4
_MORE = 40
_KNOWN = 5


class _Numbers:
    """A probe of a watchpoint: graphs are being built."""

    def token(self, frame: FrameType) -> int:
        return now()


@dataclass(slots=True)
class _Window:
    """The nodes of one evaluation."""

    low: int
    high: int = 0
    batches: int = 0
    changes: list[ValueChange] = field(default_factory=list[ValueChange])


class _Jumps:
    """Steps in which many more graph nodes are made than in a typical one."""

    def __init__(self) -> None:
        self.due = -1
        """The step after which the next one is expected."""
        self._nodes: deque[int] = deque(maxlen=8)
        self._limit = 0
        """Nodes of a step that are nothing to ask about."""
        self._last = -1
        self._compiled = 0

    @property
    def typical(self) -> int:
        """Nodes of a typical step; 0 while that is not known."""
        nodes = self._nodes
        return sorted(nodes)[len(nodes) // 2] if len(nodes) >= _KNOWN else 0

    def window(self, loss: torch.Tensor, since: int, step: int) -> _Window | None:
        """The nodes that were made since ``since`` and not for this loss, if many."""
        made = now() - since
        if made <= self._limit and step != self.due:
            return None
        nodes, compiled = self._nodes, compilations()
        traced, self._compiled = compiled != self._compiled, compiled
        if traced:
            return None  # by a compiler, which makes nodes too
        typical = self.typical
        limit = _MANY * typical + _MORE if typical else 0
        if not typical or made <= limit:
            nodes.append(made)
            self._limit = limit
            return None
        high = since + made - 2 * typical
        if touches(loss.grad_fn, since, high):
            return None
        self.due, self._last = 2 * step - self._last, step
        return _Window(since, high, batches=2)


_switch: tuple[Callable[[], None], Callable[[], None]] | None = None


def offer(put_in: Callable[[], None], take_out: Callable[[], None]) -> None:
    """Say how calls of ``train`` are told of; without this an evaluation ends with a step."""
    global _switch
    _switch = put_in, take_out


def withdraw() -> None:
    """They cannot be told of any more."""
    global _switch
    _switch = None


def _leave_train_alone() -> None:
    if _switch is not None:
        _switch[1]()


class Evaluations:
    """The evaluations of one process.

    Args:
        record: takes a measurement.
        models: the models that are trained, as far as they are known.
    """

    def __init__(
        self,
        record: Callable[[Kind], None],
        models: Callable[[], Sequence[Any]] = tuple,
    ) -> None:
        self._record, self._models = record, models
        self._jumps = _Jumps()
        self._built: deque[tuple[int, int]] = deque(maxlen=4)
        self._window: _Window | None = None
        self._done: _Window | None = None
        self._watch: Watchpoint | None = None
        self._followed = 0
        self._count = 0
        self._step = 0
        self._since = 0
        """The number of the first node after the last step; 0 once nodes cannot be compared."""

    @property
    def open(self) -> bool:
        """Whether an evaluation is going on."""
        return self._window is not None

    def begins(self, frame: FrameType) -> None:
        """``eval()`` was called on a module."""
        if not torch.is_grad_enabled():
            return
        self.ends()
        self._since = 0
        self._window = _Window(now())
        if _switch is not None:
            _switch[0]()
        self._follow(frame)

    def fetched(self) -> None:
        """A loop over data has its next batch."""
        if self._window is not None:
            self._window.batches += 1
            if self._watch is not None and not torch.is_grad_enabled():
                self._watch.pause()  # no line of this loop builds a graph

    def differentiates(self) -> None:
        """Somebody asks for gradients: the graphs are wanted."""
        self._since = 0
        self._drop()

    def restarts(self) -> None:
        """What was built since the step was wanted: count from here."""
        if self._since:
            self._since = now()

    def step_ended(self, step: int, frame: FrameType) -> None:
        """A step is over: what comes next may be an evaluation."""
        self._step, self._since = step, now()
        if step == self._jumps.due:
            self._follow(frame)

    def pauses(self) -> None:
        """Steps have gone by unseen: nodes cannot be counted from the last one."""
        self._since = 0

    def backward(self, loss: Any) -> None:
        """A backward pass begins: what is being built is wanted."""
        known = isinstance(loss, torch.Tensor)
        if known and self._since:
            changes = self._stop() if self._step == self._jumps.due else []
            if (window := self._jumps.window(loss, self._since, self._step)) is not None:
                window.changes = _most(changes)
                # A mean over kept losses makes as many, and evaluates nothing.
                if not changes or window.changes[0].model or not self._models():
                    self._write(window)
        self._since = 0
        self._drop()
        done, self._done = self._done, None
        if known and done is not None and not touches(loss.grad_fn, done.low, done.high):
            self._write(done)

    def built(self, graph: Any) -> bool:
        """Whether one of the last evaluations has built a graph, or what it hangs on."""
        return any(touches(graph, low, high) for low, high in self._built)

    def ends(self) -> None:
        """``train()`` was called on a module."""
        window, self._window = self._window, None
        changes = self._stop()
        if window is None:
            return
        _leave_train_alone()
        window.high, window.changes = now(), changes
        if window.high == window.low:
            self._followed = _FOLLOWED  # done as it should be: no need to follow the next ones
        if window.high - window.low < _NODES:
            return
        if self._done is not None:
            self._write(self._done)
        self._done = window

    def close(self) -> None:
        """The process ends."""
        self.ends()
        if self._done is not None:
            self._write(self._done)

    def _follow(self, frame: FrameType) -> None:
        if self._watch is None and self._followed < _FOLLOWED:
            watch = Watchpoint([_Numbers()], seconds=_SECONDS)
            if watch.start(frame):
                self._watch = watch
                self._followed += 1

    def _drop(self) -> None:
        self._stop()
        if self._window is not None:
            self._window = None
            _leave_train_alone()

    def _stop(self) -> list[ValueChange]:
        watch, self._watch = self._watch, None
        if watch is None:
            return []
        watch.stop()
        return watch.changes.get(0, [])

    def _write(self, window: _Window) -> None:
        self._done = None
        self._count += 1
        self._built.append((window.low, window.high))
        if not window.changes:
            # The line is seen next time.
            self._followed = min(self._followed, _FOLLOWED - 1)
            return
        line = unused_graphs.line_of(window.changes[0].calls)
        record = EvaluationGraphs(
            nodes=window.high - window.low,
            step_nodes=self._jumps.typical,
            evaluations=self._count,
            batches=window.batches,
            **vars(line),
        )
        self._record(record)


def _most(changes: Sequence[ValueChange]) -> list[ValueChange]:
    """Of all lines that made nodes those below the one call that made the most."""
    made: dict[tuple[str, int, str], int] = {}
    for change in changes:
        made[change.calls[0]] = made.get(change.calls[0], 0) + change.more
    return [change for change in changes if made[change.calls[0]] == max(made.values())]
