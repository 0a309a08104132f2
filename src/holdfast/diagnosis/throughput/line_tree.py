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
from time import perf_counter, sleep
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from ...source.frames import frames_from
from ...source.ownership import kind_of
from ..dynamo import hide

FETCH, MODEL, BACKWARD, OPTIMIZER = "fetch", "model", "backward", "optimizer"
_LIBRARY, _USER = "library", ""

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


class LineNode:
    """A line at work, called through its parents; or a mark (``line`` is 0)."""

    __slots__ = ("calls", "children", "code", "hits", "line", "mark", "parent", "rest", "seconds")

    def __init__(
        self, parent: LineNode | None, code: CodeType | None, line: int, mark: str
    ) -> None:
        self.parent, self.code, self.line, self.mark = parent, code, line, mark
        self.rest = False
        """Stands for all lines of its code while they are not followed."""
        self.children: dict[tuple[CodeType | None, int], LineNode] = {}
        self.seconds = 0.0
        self.hits = 0
        self.calls = 0
        """Calls into what is not followed: libraries, and code that was followed enough."""


class Spent(NamedTuple):
    """What a line has spent in a step."""

    seconds: float = 0.0
    hits: int = 0
    calls: int = 0


def _code(function: Any) -> CodeType | None:
    """The code behind a function, below what was wrapped around it."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return getattr(function, "__code__", None)


def _marks() -> dict[CodeType, str]:
    """The code that a mark stands for: loaders, models and backward."""
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    known = (
        (_BaseDataLoaderIter.__dict__["__next__"], FETCH),
        (nn.Module._wrapped_call_impl, MODEL),
        (torch.autograd.backward, BACKWARD),
    )
    return {code: mark for function, mark in known if (code := _code(function)) is not None}


# What of ours runs in the place of torch's: the end of a file's name, the function, its mark.
_IN_PLACE = (
    ("_optimizer_patches.py", "_step.<locals>.step", OPTIMIZER),
    ("direct_calls.py", "backward", BACKWARD),
)


def _mark_of(code: CodeType) -> str:
    """The mark of what is not the user's: a step of any optimizer, or ours in torch's place."""
    name = code.co_qualname
    if name.endswith("profile_hook_step.<locals>.wrapper"):
        return OPTIMIZER
    file = code.co_filename
    return next((m for f, n, m in _IN_PLACE if n == name and file.endswith(f)), _LIBRARY)


class LineTree:
    """Traces the thread it is started in; ``take`` hands out what a step has added."""

    def __init__(self) -> None:
        self.root = LineNode(None, None, 0, "")
        self.events = 0
        self.inputs = 0
        """Numbers in the tensors given to the outermost modules since the last ``take``."""
        self.running = False
        self._node = self.root
        self._stack: list[LineNode] = []
        self._last = 0.0
        self._kinds: dict[CodeType, str] = _marks()
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

    def _end(self) -> None:
        """End the trace; from within it only this, and ``stop`` does the rest."""
        global _active
        if self.running:
            self.running, _active = False, None
            sys.settrace(None)

    def stop(self, frame: FrameType | None = None) -> None:
        """End the trace, and leave nothing of it in the frames that were traced.

        Before Python 3.13 a traced frame keeps a copy of its variables, and with it a step's
        tensors. Must not be called from a trace function: what it has seen is written back.
        """
        self._end()
        frames = [*frames_from(frame or sys._getframe()), *self._generators, *self._left]
        self._generators, self._left = [], []
        for above in frames:
            if above.f_trace not in (self._local, self._mark):
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
                self._end()
            return None
        node = self._node
        if kind == _USER:
            passed = self._passed.get(code, 0)
            entered = self._entered[code] = self._entered.get(code, 0) + 1
            if passed > _LINES and passed < _LONG * entered:
                # Called again and again: its time is that of the line that calls it.
                node.calls += 1
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
            self._end()
            return None
        return self._local

    def _leave(self, frame: FrameType, parent: LineNode) -> None:
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

    def _kind(self, code: CodeType) -> str:
        if kind_of(code.co_filename) == "user":
            return _USER
        return _mark_of(code)

    def _child(self, parent: LineNode, code: CodeType | None, line: int, mark: str) -> LineNode:
        node = parent.children.get((code, line))
        if node is None:
            self._nodes += 1
            node = parent.children[code, line] = LineNode(parent, code, line, mark)
        return node

    # ------------------------------------------------------------------ what came out

    def take(self) -> tuple[dict[LineNode, Spent], int]:
        """What each line has spent since the last call, and ``inputs``."""
        if self.running:
            self._node.seconds += perf_counter() - self._last
        spent: dict[LineNode, Spent] = {}
        todo, cost = [self.root], costs()
        while todo:
            node = todo.pop()
            todo += node.children.values()
            if node.hits or node.seconds:
                seconds = node.seconds - cost.line * node.hits - cost.call * node.calls
                spent[node] = Spent(max(0.0, seconds), node.hits, node.calls)
                node.seconds, node.hits, node.calls = 0.0, 0, 0
        inputs = self.inputs
        self.events = self.inputs = self._looked = 0
        self._passed, self._entered = {}, {}
        self._last = self._began = perf_counter()
        return spent, inputs


_active: LineTree | None = None


class Costs(NamedTuple):
    """Seconds that the trace adds to a step for each line and each call of a library."""

    wall: float = 0.0
    """For a line."""
    line: float = 0.0
    """Part of that which is counted as the line's own time."""
    call: float = 0.0


_costs: Costs | None = None

# Rounds of the loop that measures the trace itself: a fraction of a millisecond.
_ROUNDS = 40


def _loop() -> None:
    for _ in range(_ROUNDS):
        pass


def costs() -> Costs:
    """Measure, once, what the trace takes for a line.

    Of that a third is counted as the line's own time, and a call of a library takes half as long
    (0.49 and 0.73 of 1.49 microseconds on an ARM processor).
    """
    global _costs
    if _costs is None and _active is None and sys.gettrace() is None:
        tree = LineTree()
        tree._kinds[_loop.__code__] = _USER
        wall = max(0.0, _shortest(tree) - _shortest(None)) / (2 * _ROUNDS)
        _costs = Costs(wall, wall / 3, wall / 2)
    return _costs or Costs()


def _shortest(tree: LineTree | None) -> float:
    """Seconds that the loop takes, the best of four."""
    times: list[float] = []
    for _ in range(4):
        if tree is not None:
            tree.start(None)
        began = perf_counter()
        _loop()
        times.append(perf_counter() - began)
        if tree is not None:
            tree.stop()
    return min(times)


def _forked() -> None:
    """A child (a loader's worker) must not go on tracing."""
    global _active
    if _active is not None:
        _active.running = False
        _active = None
        sys.settrace(None)


os.register_at_fork(after_in_child=_forked)
