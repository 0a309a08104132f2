"""Detect evaluations that build graphs: after ``eval()``, or in a loop without backward.

The number of the next graph node stands still under ``no_grad``. Where it moves between the
beginning of an evaluation and its end, without a backward pass or a call of ``autograd.grad``, and
the next loss does not lead there either, the graphs were unused. Which line did it is seen
by following the lines for some milliseconds, in the first evaluations only.

An evaluation that calls neither ``eval()`` nor a loader shows by many more nodes than a typical
step makes, before a loss that does not lead to them; its line is looked for where the next one is
due.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch

from ..dynamo import compilations
from ..source.place import frames_from, kind_of, place_told
from ..watchpoint import Change, Watchpoint
from .graphs import now, touches

# Evaluations whose lines are followed, and for how long each.
_FOLLOWED = 3
_SECONDS = 0.25
# Nodes that make a graph of a model; a mean of some parameters is none.
_NODES = 3
# Batches of an evaluation at which following may begin once more.
_BATCHES = 6
# Times the nodes of a typical step, and nodes, that are too many; steps until that is known.
_MANY = 4
_MORE = 40
_KNOWN = 5
# Loops over data that are known to train.
_LOOPS = 64

Line = tuple[str, int]


class _Numbers:
    """A probe of a watchpoint: graphs are being built."""

    def token(self, frame: FrameType) -> int:
        return now()


@dataclass(slots=True)
class _Window:
    """One evaluation, from its beginning on."""

    low: int
    called: bool
    """It began with ``eval()``."""
    high: int = 0
    fetches: int = 0
    place: Line | None = None
    """Where it is going on, roughly."""
    changes: list[Change] = field(default_factory=list[Change])


class _TrainingLoops:
    """The lines at which training asks for its batches: loops in which backward is called."""

    def __init__(self) -> None:
        self._lines: set[Line] = set()
        self._asking: Line | None = None
        self._typical: tuple[int, CodeType, int] | None = None
        """Where the loop nearly always is: frames above ours, code and line."""

    def is_typical(self, frame: FrameType) -> bool:
        """Whether a batch goes to where they nearly always go; asked for every batch."""
        if self._typical is None:
            return False
        depth, code, line = self._typical
        at: FrameType | None = frame
        for _ in range(depth):
            at = at.f_back if at is not None else None
        return at is not None and at.f_code is code and at.f_lineno == line

    def other(self, frame: FrameType, *, evaluating: bool) -> Line | None:
        """The line that asks for a batch; None where it is one of training."""
        line = self._asking = _asks(frame)
        known = line is None or line in self._lines
        self._typical = _above(frame, line) if line and known and not evaluating else None
        return None if known else line

    def backward(self) -> None:
        """The line that asked last is one of training."""
        if self._typical is None and self._asking is not None and len(self._lines) < _LOOPS:
            self._lines.add(self._asking)


class _Jumps:
    """Steps in which many more graph nodes are made than in a typical one."""

    def __init__(self) -> None:
        self.due = -1
        """The step after which the next one is expected."""
        self._nodes: deque[int] = deque(maxlen=8)
        self._limit = 0
        """Nodes of a step about which nobody has a question."""
        self._steps = [-1]
        self._compiled = 0

    def range(self, loss: torch.Tensor, since: int, step: int) -> tuple[int, int] | None:
        """The numbers of nodes that were made since ``since`` and not for this loss, if many."""
        made = now() - since
        if made <= self._limit and step != self.due:
            return None
        nodes, compiled = self._nodes, compilations()
        traced, self._compiled = compiled != self._compiled, compiled
        if traced:
            return None  # by a compiler, which makes nodes too
        typical = sorted(nodes)[len(nodes) // 2] if len(nodes) >= _KNOWN else 0
        limit = _MANY * typical + _MORE if typical else 0
        if not typical or made <= limit:
            nodes.append(made)
            self._limit = limit
            return None
        high = since + made - 2 * typical
        if touches(loss.grad_fn, since, high):
            return None
        self.due = 2 * step - self._steps[-1]
        self._steps.append(step)
        return since, high


class Evaluation:
    """The evaluations of one process."""

    def __init__(self, record: Callable[[str, dict[str, Any]], None]) -> None:
        self.open = False
        """Whether an evaluation is going on, or seems to."""
        self._record = record
        self._loops = _TrainingLoops()
        self._jumps = _Jumps()
        self._built: deque[tuple[int, int]] = deque(maxlen=4)
        self._window: _Window | None = None
        self._done: _Window | None = None
        self._watch: Watchpoint | None = None
        self._followed = 0
        self._count = 0
        self._recorded = False
        self._ending = False
        self._step = 0
        self._since = 0
        """The number of the first node after the last step; 0 once backward has been called."""
        self._noticed = False
        """This step has an evaluation that is known by other signs."""

    def begins(self, frame: FrameType) -> None:
        """``eval()`` was called on a module."""
        if not torch.is_grad_enabled():
            return
        self._finish()
        self._noticed = True
        self._window = _Window(now(), called=True, place=_asks(frame))
        self.open = True
        self._follow(frame)

    def ends(self) -> None:
        """``train()`` was called on a module."""
        self._finish()

    def differentiates(self) -> None:
        """Somebody asks for gradients: the graphs are wanted."""
        self._noticed = True
        if self.open:
            self._drop()

    def fetched(self, frame: FrameType) -> None:
        """A loop over data has its next batch."""
        if not self.open and self._loops.is_typical(frame):
            return
        line = self._loops.other(frame, evaluating=self.open)
        if line is None:
            if self.open:
                self._finish()
            return
        window = self._window
        if window is None:
            window = self._window = _Window(now(), called=False)
            self.open = self._noticed = True
        window.fetches += 1
        window.place = line
        if window.fetches <= _BATCHES and now() - window.low >= _NODES:
            self._follow(frame)
        elif self._watch is not None and 0 in self._watch.changes:
            self._watch.pause()

    def step_ended(self, step: int, frame: FrameType) -> None:
        """A step is over: what comes next may be an evaluation."""
        self._step = step
        self._since, self._noticed = now(), False
        if step == self._jumps.due and not self._recorded:
            self._follow(frame)

    def pauses(self) -> None:
        """Steps have gone by unseen: nodes cannot be counted from the last one."""
        self._since = 0

    def _look_for_jump(self, loss: torch.Tensor) -> None:
        """An evaluation that calls neither ``eval()`` nor a loader."""
        changes = self._stop() if self._step == self._jumps.due else []
        found = self._jumps.range(loss, self._since, self._step)
        if found is not None:
            low, high = found
            self._tell(_Window(low, called=False, high=high, fetches=2, changes=changes))

    def backward(self, loss: Any) -> None:
        """A backward pass begins: what was built since the last batch is wanted."""
        if isinstance(loss, torch.Tensor) and self._since and not self._noticed:
            self._look_for_jump(loss)
        self._since = 0
        self._loops.backward()
        if self.open:
            self._drop()
        done, self._done = self._done, None
        if done is None or not isinstance(loss, torch.Tensor):
            return
        if not touches(loss.grad_fn, done.low, done.high):
            self._tell(done)

    def built(self, graph: Any) -> bool:
        """Whether one of the last evaluations has built a graph, or what it hangs on."""
        return any(touches(graph, low, high) for low, high in self._built)

    def close(self) -> None:
        """The process ends."""
        self._finish()
        self._ending = not self._recorded
        if self._done is not None:
            self._tell(self._done)

    def _follow(self, frame: FrameType) -> None:
        watch = self._watch
        if watch is not None and (watch.active or 0 in watch.changes):
            return
        if self._followed >= _FOLLOWED:
            return
        watch = Watchpoint([_Numbers()], seconds=_SECONDS)
        if watch.start(frame):
            self._watch = watch
            self._followed += 1

    def _drop(self) -> None:
        self._stop()
        self._window, self.open = None, False

    def _stop(self) -> list[Change]:
        watch, self._watch = self._watch, None
        if watch is None:
            return []
        watch.stop()
        return watch.changes.get(0, [])

    def _finish(self) -> None:
        window, self._window, self.open = self._window, None, False
        changes = self._stop()
        if window is None:
            return
        window.high, window.changes = now(), changes
        if window.high == window.low and window.called:
            self._followed = _FOLLOWED  # done as it should be: no need to follow the next ones
        if window.high - window.low < _NODES or (not window.called and window.fetches < 2):
            return
        if self._done is not None:
            self._tell(self._done)
        self._done = window

    def _tell(self, window: _Window) -> None:
        self._done = None
        self._count += 1
        self._built.append((window.low, window.high))
        if window.changes:
            change = window.changes[0]
            file, line, function = change.outside or (change.file, change.line, change.function)
        elif self._ending and window.place is not None:
            (file, line), function = window.place, ""
        else:
            # The line is seen next time.
            self._followed = min(self._followed, _FOLLOWED - 1)
            return
        self._recorded = True
        self._record(
            "evaluation_graphs",
            {
                "nodes": window.high - window.low,
                "evaluations": self._count,
                "batches": window.fetches,
                "function": function,
                "seen": "trace" if window.changes else "guess",
                **place_told(file, line),
            },
        )


def _above(frame: FrameType, line: Line) -> tuple[int, CodeType, int] | None:
    for depth, at in enumerate(frames_from(frame)):
        if (at.f_code.co_filename, at.f_lineno) == line:
            return depth, at.f_code, at.f_lineno
    return None


def _asks(frame: FrameType) -> Line | None:
    """The user's line that asks for a batch."""
    for at in frames_from(frame):
        if kind_of(at.f_code.co_filename) == "user":
            return at.f_code.co_filename, at.f_lineno
    return None
