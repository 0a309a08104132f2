"""A line trace of one thread: seconds per line of the user's code, and what they were spent for.

Only lines in the user's files are looked at. What a library does in between counts for the
user's line that called it; a model, ``backward``, an optimizer and a loader in between are told
apart by their marks. Costs about a microsecond per line of the user, and nothing when stopped.

Code that passes very many lines is followed in bursts: after its first ``_LINES`` lines of a step
its frame is left alone, its time is counted as a whole, and every few milliseconds a burst of
lines is followed again. So a step in pure Python takes about as long as without the trace, and
what its lines took in the bursts says how its time is divided among them.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable
from time import perf_counter, sleep
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from ..dynamo import hide
from ..source.place import frames_from, kind_of
from .line_nodes import (
    MODEL,
    OPTIMIZER,
    Node,
    is_step,
    marks,
)

_LIBRARY, _USER = 0, 1

# Lines of one code in a step until it is followed in bursts, and lines of a burst; seconds between.
_LINES = 4_000
_BURST = 200
_PAUSE = 0.002
# Lines that a call must have on average for its time to be worth telling apart.
_LONG = 40
# Lines and places beyond which a trace ends by itself: about a quarter of a second.
_EVENTS = 200_000
_NODES = 4_000
# Seconds without a step after which it ends too, looked at once in so many calls.
_PATIENCE = 5.0
_CALLS = 256
# Generators whose variables are let go of afterwards.
_GENERATORS = 256
_COPIES = sys.version_info < (3, 13)
# Inputs of the model that are measured in one step.
INPUTS = 16


class LineTree:
    """Traces the thread it is started in; ``take`` hands out what a step has added."""

    def __init__(self) -> None:
        self.root = Node(None, None, 0, "")
        self.events = 0
        self.inputs = 0
        """Numbers in the tensors given to the outermost modules since the last ``take``."""
        self.overflown = False
        self.running = False
        self._node = self.root
        self._stack: list[Node] = []
        self._last = 0.0
        self._kinds: dict[CodeType, Any] = dict(marks())
        self._nodes = 0
        self._models = 0
        self._looked = 0
        self._began = 0.0
        self._generators: list[FrameType] = []
        self._passed: dict[CodeType, int] = {}
        self._entered: dict[CodeType, int] = {}
        self._left: list[FrameType] = []
        """Frames that are left alone until the next burst."""
        self._wakes = False

    # ------------------------------------------------------------------ on and off

    def start(self, frame: FrameType | None) -> bool:
        """Begin with whatever runs after this; False where somebody else traces."""
        global _active
        if sys.gettrace() is not None or self.running:
            return False
        hide(*(f.__code__ for f in (LineTree._global, LineTree._local, LineTree._mark)))
        self._stack, self._node, self._models = [], self.root, 0
        above = [f for f in frames_from(frame) if kind_of(f.f_code.co_filename) == "user"]
        for user in reversed(above):
            self._stack.append(self._node)
            self._node = self._child(self._node, user.f_code, user.f_lineno, "")
            user.f_trace = self._local
        self.running = True
        self._passed, self._entered = {}, {}
        _active = self
        self._last = self._began = perf_counter()
        sys.settrace(self._global)
        return True

    def _give_up(self) -> None:
        """End the trace from within it; ``stop`` will do the rest."""
        global _active
        self.overflown, self.running = True, False
        _active = None
        sys.settrace(None)

    def stop(self, frame: FrameType | None = None) -> None:
        """End the trace."""
        global _active
        if not self.running and not self.overflown:
            return
        if self.running:
            sys.settrace(None)
        self.overflown = self.running = False
        _active = None
        self._let_go(frame or sys._getframe())

    def _let_go(self, frame: FrameType) -> None:
        """Leave nothing of ours in the frames that were traced.

        Before Python 3.13 a traced frame keeps a copy of its variables, and with it a step's
        tensors. Must not be called from a trace function: what it has seen is written back.
        """
        frames = [*frames_from(frame), *self._generators, *self._left]
        self._generators, self._left = [], []
        for above in frames:
            if above.f_trace is None:
                continue
            above.f_trace = None
            above.f_trace_lines = True
            if _COPIES and above.f_code.co_flags & inspect.CO_OPTIMIZED:
                above.f_locals.clear()

    # ------------------------------------------------------------------ events

    def _global(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        kind = self._kinds.get(code)
        if kind is None:
            kind = self._kinds[code] = self._kind(code)
        if kind == _LIBRARY:
            self._node.calls += 1
            if not self._node.calls % _CALLS and perf_counter() - self._began > _PATIENCE:
                self._give_up()
            return None
        node = self._node
        if kind == _USER:
            passed = self._passed.get(code, 0)
            entered = self._entered[code] = self._entered.get(code, 0) + 1
            if passed > _LINES and passed < _LONG * entered:
                # Called again and again: its time is that of the line that calls it.
                self._rested()
                return None
            self._passed[code] = passed + 1
        node.seconds += perf_counter() - self._last
        self.events += 1
        self._stack.append(node)
        if kind == _USER:
            self._node = self._child(node, code, frame.f_lineno, "")
            self._node.hits += 1
            if code.co_flags & inspect.CO_GENERATOR and len(self._generators) < _GENERATORS:
                self._generators.append(frame)
            local = self._local
            if self._passed[code] > _LINES:
                self._leave(frame, node)
        else:
            if kind == MODEL:
                self._sees_model(frame)
            self._node = self._child(node, code, 0, kind)
            self._node.hits += 1
            frame.f_trace_lines = False
            local = self._mark
        self._last = perf_counter()
        return local

    def _local(self, frame: FrameType, event: str, arg: Any) -> Any:
        self._node.seconds += perf_counter() - self._last
        if event == "line":
            parent = self._stack[-1] if self._stack else self.root
            code, line = frame.f_code, frame.f_lineno
            passed = self._passed[code] = self._passed.get(code, 0) + 1
            if passed > _LINES:
                self._leave(frame, parent)
            else:
                node = parent.children.get((code, line))
                self._node = node = node or self._child(parent, code, line, "")
                node.hits += 1
        elif event == "return":
            self._node = self._stack.pop() if self._stack else self.root
        self.events += 1
        self._last = perf_counter()
        if self.events > _EVENTS or self._nodes > _NODES or self._last - self._began > _PATIENCE:
            self._give_up()
            return None
        return self._local

    def _leave(self, frame: FrameType, parent: Node) -> None:
        """Follow no more lines of this frame for a while."""
        frame.f_trace_lines = False
        # A place of its own: no line has a negative number.
        node = self._child(parent, frame.f_code, -1, "")
        node.rest, node.line = True, frame.f_lineno
        self._node = node
        self._left.append(frame)
        self._rested()

    def _rested(self) -> None:
        """Something is left alone: have somebody wake it."""
        if not self._wakes:
            self._wakes = True
            threading.Thread(target=self._wake, name="holdfast-lines", daemon=True).start()

    def _wake(self) -> None:
        while self.running and _active is self:
            sleep(_PAUSE)
            left, self._left = self._left, []
            for code, passed in list(self._passed.items()):
                if passed > _LINES:
                    # Its calls are counted anew too, so that lines per call stay what they are.
                    scale = (_LINES - _BURST) / passed
                    self._passed[code] = _LINES - _BURST
                    self._entered[code] = int(self._entered.get(code, 0) * scale)
            for frame in left:
                frame.f_trace_lines = True
        self._wakes = False

    def _mark(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "return":
            self._node.seconds += perf_counter() - self._last
            if self._node.mark == MODEL:
                self._models -= 1
            self._node = self._stack.pop() if self._stack else self.root
            self._last = perf_counter()
        return self._mark

    def _sees_model(self, frame: FrameType) -> None:
        self._models += 1
        if self._models == 1 and self._looked < INPUTS:
            self._looked += 1
            given: Any = frame.f_locals
            self.inputs += sum(
                v.numel()
                for v in (*given.get("args", ()), *given.get("kwargs", {}).values())
                if isinstance(v, torch.Tensor)
            )

    def _kind(self, code: CodeType) -> Any:
        if kind_of(code.co_filename) == "user":
            return _USER
        return OPTIMIZER if is_step(code) else _LIBRARY

    def _child(self, parent: Node, code: CodeType | None, line: int, mark: str) -> Node:
        node = parent.children.get((code, line))
        if node is None:
            self._nodes += 1
            node = parent.children[code, line] = Node(parent, code, line, mark)
        return node

    # ------------------------------------------------------------------ what came out

    def take(self, visit: Callable[[Node, float], None]) -> int:
        """Show every node that has spent time since the last call; returns ``inputs``."""
        if self.running:
            now = perf_counter()
            self._node.seconds += now - self._last
        todo = [self.root]
        cost = costs()
        while todo:
            node = todo.pop()
            todo += node.children.values()
            if node.hits or node.seconds:
                spent = node.seconds - cost.line * node.hits - cost.call * node.calls
                visit(node, max(0.0, spent))
                node.seconds, node.hits, node.calls = 0.0, 0, 0
        told = self.inputs
        self.events = self.inputs = self._looked = 0
        self._passed, self._entered = {}, {}
        if self.running:
            self._last = self._began = perf_counter()
        return told


_active: LineTree | None = None


class Costs(NamedTuple):
    """Seconds that the trace adds: to the times it tells, and to the run."""

    line: float
    call: float
    line_wall: float
    call_wall: float


_costs: Costs | None = None

# Rounds of the loops that measure the trace itself; under a millisecond together.
_ROUNDS = 100


def _loop() -> None:
    for _ in range(_ROUNDS):
        pass


def _calls() -> None:
    for _ in range(_ROUNDS):
        _nothing()


def _nothing() -> None:
    pass


def costs() -> Costs:
    """What the trace itself takes for a line and for a call of a library; measured once."""
    global _costs
    if _costs is None and _active is None and sys.gettrace() is None:
        tree = LineTree()
        tree._kinds |= {_loop.__code__: _USER, _calls.__code__: _USER, _nothing.__code__: _LIBRARY}
        plain, called = _shortest(_loop, None)[1], _shortest(_calls, None)[1]
        told, wall = _shortest(_loop, tree)
        line, line_wall = (max(0.0, t - plain) / (2 * _ROUNDS) for t in (told, wall))
        told, wall = _shortest(_calls, tree)
        call = max(0.0, told - called - 2 * _ROUNDS * line) / _ROUNDS
        call_wall = max(0.0, wall - called - 2 * _ROUNDS * line_wall) / _ROUNDS
        _costs = Costs(line, call, line_wall, call_wall)
    return _costs or Costs(0.0, 0.0, 0.0, 0.0)


def _shortest(function: Callable[[], None], tree: LineTree | None) -> tuple[float, float]:
    """The best of five: seconds that the trace tells of its lines, and that it really takes."""
    times: list[tuple[float, float]] = []
    for _ in range(5):
        if tree is not None:
            tree.start(None)
        began = perf_counter()
        function()
        wall = perf_counter() - began
        told = 0.0
        if tree is not None:
            tree.stop()
            told = _told(tree.root)
        times.append((told, wall))
    return min(t for t, _ in times), min(w for _, w in times)


def _told(node: Node) -> float:
    """Seconds of the two loops above, which are forgotten."""
    seconds, node.seconds = node.seconds, 0.0
    mine = seconds if node.code in (_loop.__code__, _calls.__code__) else 0.0
    return mine + sum(_told(child) for child in node.children.values())


def _forked() -> None:
    """A child (a loader's worker) must not go on tracing."""
    global _active
    if _active is not None:
        _active.running = False
        _active = None
        sys.settrace(None)


os.register_at_fork(after_in_child=_forked)
