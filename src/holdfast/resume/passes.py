"""Passes of a script over its loaders, in the order of the program, and what each has changed.

A pass that begins inside the loop of another belongs to it. What a finished pass has changed in the
variables of the script is kept, so that a resumed script can go through the code after it.
"""

from __future__ import annotations

import dis
import inspect
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from torch.utils.data import IterableDataset

from .. import source
from ..checkpoint.loader_pass import Beginning
from ..source.frames import forget_locals, frames_from, user_frames
from . import standing
from .frames import chain, check_reader, place_of, position, scope_line, user_modules, variables
from .refusal import RefusedError
from .values import generators
from .values.baseline import StartValues
from .values.nodes import Node, same
from .values.secrets import without
from .values.taking import Taking
from .values.tensors import SavedTensors
from .worker_view import View, changed, runs_own_code, seen_by_workers

_FREE = 1.0
_SHARE = 0.01
"""Seconds, and share of the time since then, that keeping what passes change may take."""
_ROOM = 64 << 20
"""Bytes that what passes have changed may take in memory and in every checkpoint."""

Values = dict[str, dict[str, Node]]


@dataclass(slots=True, eq=False)
class Open:
    """A pass that is under way."""

    loader: dict[str, Any]
    """Facts about its loader, which need not live as long."""
    iterator: weakref.ref[Any]
    beginning: Beginning
    nested: bool
    steps: int
    """Steps of the run when it began."""
    key: int = 0
    before: int = -1
    now: int = -1
    """Steps at the last two times it was asked for a batch."""
    frame: int = 0
    code: CodeType | None = None
    lines: tuple[int, int] = (0, 0)
    at: list[list[Any]] = field(default_factory=list[list[Any]])
    """Where its first batch was asked for."""
    targets: dict[str, Any] = field(default_factory=dict[str, Any])
    """Targets of the loops around it, when its first batch was asked for."""
    by_hand: bool = False
    """Whether it is asked by ``next`` or a generator of the script, not by the loop that trains."""
    lasting: bool = False
    """Whether its workers go on in the next pass: a resumed script leads them through each."""
    own_code: bool = False
    """Whether its workers run code of the script, which may see what changes between passes."""
    seen: View | RefusedError | None = None
    """What they see, where a resumed script would come to its batch at once; why not, or None."""

    def asked(self, frame: FrameType) -> None:
        """Its first batch is asked for."""
        at = next(user_frames(frame), None)
        if at is None:
            return
        self.frame, self.code = id(at), at.f_code
        looping = dis.opname[at.f_code.co_code[at.f_lasti]] == "FOR_ITER"
        self.by_hand = not looping or bool(at.f_code.co_flags & inspect.CO_GENERATOR)
        loop = source.loop_at(at.f_code.co_filename, scope_line(at), at.f_lineno)
        self.lines = loop.first, loop.last
        frames = chain(frame)
        self.at, self.targets = position(frames), targets(frames)

    def check_workers(self, why: RefusedError) -> None:
        """Refuse workers that may have seen something else than what is there now."""
        if not (self.loader["workers"] and self.own_code):
            return
        file, line = (self.code.co_filename, self.lines[0]) if self.code else (why.file, why.line)
        if self.seen is None:
            text = f"{why.reason}, and the workers of the loader run code of the script"
            raise RefusedError(text, why.file, why.line)
        if isinstance(self.seen, RefusedError):
            raise self.seen.alone().at(file, line)
        moved = changed(self.seen, self.iterator())
        if moved:
            text = f"{moved} has changed since the workers of the loader began, which may read it"
            raise RefusedError(text, file, line)

    def left(self, frame: FrameType) -> bool:
        """Whether the script has left its loop without reading it to the end."""
        if self.iterator() is None:
            return True
        if self.code is None:
            return False
        for one in frames_from(frame):
            if id(one) == self.frame and one.f_code is self.code:
                return not self.lines[0] <= one.f_lineno <= self.lines[1]
        return True


class Passes:
    """Passes of this process so far, and what they have changed.

    Args:
        knows: whether an open file is one whose length is noted.
    """

    def __init__(self, knows: Callable[[Any], bool] = bool) -> None:
        self.knows = knows
        self.done: list[dict[str, Any]] = []
        """Records of those that are over, none inside another."""
        self.open: list[Open] = []
        self.broken: RefusedError | None = None
        """Why nothing after this can be resumed; None as far as is known."""
        self.jumps: RefusedError | None = None
        """Why a resumed script cannot go from pass to pass, but only from the first one at once."""
        self.first: dict[str, Any] = {}
        """Where the first pass that was trained on asked for its first batch."""
        self.baseline = StartValues()
        self._last: Values = {}
        self._rng: dict[str, Any] = {}
        self._steps = 0
        self._bytes = 0
        self._spent = 0.0
        self._began = 0.0
        self.later = False
        """Whether a training loop was over before these."""
        self.began_at = 0.0
        """When the first pass began that was trained on, by the clock."""

    @property
    def trained(self) -> bool:
        """Whether a pass that is over was trained on."""
        return self._steps > 0

    def next_loop(self, passes: int) -> None:
        """Another training loop follows the one so far; so many passes lie between the two."""
        self.done, self.open, self.later = [{"real": True}] * passes, [], True
        self.jumps, self.first, self.baseline = None, {}, StartValues()
        self._last, self._rng, self._steps, self._bytes = {}, {}, 0, 0

    # ------------------------------------------------------------------ first run

    def begins(self, steps: int, frame: FrameType) -> bool:
        """A pass is about to begin; True when it is inside another."""
        self.settle(frame, steps)
        if self.open:
            return True
        if not self._began:
            self._began = time.monotonic()
        if steps != self._steps and self.jumps is None:
            self.jumps = RefusedError("the optimizer steps outside of a loop over a DataLoader")
        if not steps:
            self.began_at = self.began_at if self.later else time.time()
            self.look(frame)
        return False

    def look(self, frame: FrameType, feed: Callable[..., Node] | None = None) -> None:
        """Learn what is there before the first step; ``feed`` takes iterators over loaders."""
        self.baseline = StartValues()
        taking = Taking(SavedTensors(), self.baseline, changes, first=True, feed=feed)
        for root, held in variables(chain(frame)).items():
            for name, value in held.items():
                try:
                    taking.take(value, f"{root}/{name}")
                except RefusedError:
                    continue  # said when it matters

    @property
    def need_rounds(self) -> bool:
        """Whether no single pass says where the loop that trains is.

        It asks none or several, or by hand one that cannot be gone to at once.
        """
        there = [one for one in self.open if one.iterator() is not None]
        if len(there) != 1 or there[0].now < 0:
            return True
        one = there[0]
        return one.by_hand and bool(one.loader.get("stream") or one.own_code)

    def by_rounds(self) -> None:
        """The training is followed by its rounds: passes are parts of these."""
        for one in self.open:
            one.nested = True

    def began(
        self,
        loader: Any,
        iterator: Any,
        beginning: Beginning,
        *,
        nested: bool,
        steps: int,
    ) -> None:
        """Its iterator is there."""
        beginning.of(iterator)
        self._open(loader, iterator, beginning, nested, steps)

    def _open(
        self, loader: Any, iterator: Any, beginning: Beginning, nested: bool, steps: int
    ) -> None:
        reported = {} if nested else facts(loader)
        one = Open(reported, weakref.ref(iterator), beginning, nested, steps)
        one.key, one.own_code = id(iterator), not nested and runs_own_code(loader)
        one.lasting = bool(getattr(loader, "persistent_workers", False))
        self.open.append(one)
        if self.jumps is not None:
            self.look_at_workers(one)

    def look_at_workers(self, one: Open) -> None:
        """Note what the workers of a pass see, which begins."""
        if one.seen is not None or not one.own_code or not one.loader.get("workers"):
            return
        began = time.thread_time()
        try:
            if self._is_dear():
                raise RefusedError("what the workers of the loader see takes over 1 % of the time")
            one.seen = seen_by_workers(one.iterator())
        except RefusedError as refusal:
            one.seen = refusal.alone()
        except Exception as error:
            one.seen = RefusedError(f"what the workers of the loader see: {type(error).__name__}")
        self._spent += time.thread_time() - began

    def _is_dear(self) -> bool:
        return self._spent > _FREE + _SHARE * (time.monotonic() - self._began)

    def asks_first(self, one: Open, frame: FrameType, steps: int) -> None:
        """A pass is asked for its first batch."""
        one.asked(frame)
        if one.nested or self.broken is not None:
            return
        if not steps:
            self.first = {"passes": len(self.done), **_asking(frame)}
        elif self.jumps is not None:
            self.broken = self.first.get("refusal")  # said at once: a kill says nothing

    def cannot_jump(self, frame: FrameType) -> RefusedError | None:
        """Why a script that asks for a batch here cannot come from where it did so first."""
        assert self.jumps is not None
        why = self.first.get("refusal") or _asking(frame).get("refusal")
        if why is None and self.jumps.reason.startswith("the optimizer steps"):
            return None if self._asks_as_first(frame) else self.jumps
        return why

    def jumps_from(self, frame: FrameType) -> bool:
        """Whether a batch is asked for where the first one was, or that does not matter."""
        if self.jumps is None and self.open and self.open[0].at:
            frames, one = chain(frame), self.open[0]
            moved = moved_target(one.targets, targets(frames))
            if moved:
                self.jumps = _goes_on(moved, frames)
            elif one.at != position(frames):
                text = "a pass over the loader is begun on one line and goes on on another"
                self.jumps = RefusedError(text, frames[-1].f_code.co_filename, one.lines[0])
        return self.jumps is None or self._asks_as_first(frame)

    def _asks_as_first(self, frame: FrameType) -> bool:
        here = _asking(frame)
        return all(here.get(key) == self.first.get(key) for key in ("position", "shapes"))

    def find(self, iterator: Any) -> Open | None:
        """The pass of an iterator."""
        key = id(iterator)
        for one in reversed(self.open):
            if one.key == key:
                return one
        return None

    def settle(self, frame: FrameType, steps: int) -> None:
        """Forget passes that the script has left."""
        while self.open and self.open[-1].left(frame):
            left = self.open.pop()
            if left.nested:
                continue
            self.done.append({"real": True})
            if steps and self.jumps is None:
                file = left.code.co_filename if left.code is not None else ""
                text = "a loop is left before its loader is through"
                self.jumps = RefusedError(text, file, left.lines[0])
            self._steps = steps

    def ends(self, one: Open, known: SavedTensors, steps: int, frame: FrameType) -> None:
        """A pass is over: keep what it has changed."""
        while self.open and self.open[-1] is not one:
            self.open.pop()
        self.open.pop()
        if one.nested:
            return
        self._steps = steps
        if not steps:
            # Nothing was trained: made again as it was.
            self.done.append({"real": True})
            return
        if self.broken is not None or self.jumps is not None:
            return
        began = time.thread_time()  # a busy machine is not our cost
        try:
            self.done.append(self._record(one, known, steps, frame))
        except RefusedError as refusal:
            self.jumps = refusal.alone()
        self._spent += time.thread_time() - began
        if self._is_dear():
            text = "passes are so short that keeping what they change costs over 1 % of the time"
            self.jumps = self.jumps or RefusedError(text)

    def _record(
        self, one: Open, known: SavedTensors, steps: int, frame: FrameType
    ) -> dict[str, Any]:
        check_reader(frame)
        frames = chain(frame)
        trained = steps != one.steps
        taking = Taking(
            known,
            self.baseline,
            changes,
            inside=False,
            inline=True,
            graphs=not trained,
            running=frames,
            knows=self.knows,
        )
        values = take_variables(taking, frames)
        self._bytes += taking.bytes
        if self._bytes > _ROOM:
            text = f"passes leave more than {_ROOM >> 20} MiB in variables that are read later"
            raise RefusedError(text, frames[-1].f_code.co_filename, one.lines[0])
        record = {
            "position": position(frames),
            "targets": check_targets(one, frames),
            "loader": one.loader,
            "steps": steps,
            **self.difference(values),
        }
        if one.lasting:
            state = one.beginning.state(getattr(one.iterator(), "_num_yielded", 0))
            record["lasting"] = {key: state[key] for key in ("batches", "order")}
        state = generators.of_process()
        record["rng"] = {key: one for key, one in state.items() if self._rng.get(key) != one}
        self._rng = state
        return record

    def difference(self, values: Values) -> dict[str, Any]:
        """What of these values was not so at the end of the last pass."""
        names = {root: list(held) for root, held in values.items()}
        changed = {
            root: {
                name: node
                for name, node in held.items()
                if name not in self._last.get(root, {}) or not same(self._last[root][name], node)
            }
            for root, held in values.items()
        }
        for root, held in values.items():
            self._last.setdefault(root, {}).update(held)
        return {"names": names, "values": {root: held for root, held in changed.items() if held}}

    # ------------------------------------------------------------------ a resumed run

    def over(self, record: dict[str, Any]) -> tuple[Values, dict[str, Any]]:
        """A pass of the earlier run was over here: the variables and the RNG state after it."""
        self.done.append(record)
        self._steps = 0
        for root, held in record["values"].items():
            self._last.setdefault(root, {}).update(held)
        self._rng |= record["rng"]
        values = {
            root: {name: self._last[root][name] for name in names}
            for root, names in record["names"].items()
        }
        return values, self._rng

    def takes_up(self, loader: Any, iterator: Any, beginning: Beginning) -> None:
        """The pass of the checkpoint is begun again."""
        self._open(loader, iterator, beginning, nested=False, steps=0)

    def resumed(self, steps: int) -> None:
        """Everything is as it was after so many steps."""
        self._steps = steps


# ---------------------------------------------------------------------- details


def _asking(frame: FrameType) -> dict[str, Any]:
    """Where a batch is asked for: position and loops, or why these cannot be told."""
    frames = chain(frame)
    try:
        loops = standing.loops_around_a_question(frames)
        found = standing.shapes(standing.places(loops, frames, lambda one, path: None))
    except RefusedError as refusal:
        return {"position": position(frames), "refusal": refusal.alone()}
    return {"position": position(frames), "shapes": found}


def take_variables(taking: Taking, frames: list[FrameType]) -> Values:
    """The variables of the script that can be read again, as nodes."""
    dead: dict[str, frozenset[str]] = {}
    for number, frame in enumerate(frames):
        function = scope_line(frame)
        root = f"{number}" if function else f"module {frame.f_globals.get('__name__')}"
        dead[root] = source.dead_at(frame.f_code.co_filename, function, frame.f_lineno)
    found = variables(frames)
    # Modules first: what a function has got from them is another name for it.
    order = sorted(found, key=lambda root: (not root.startswith("module "), root))
    values: Values = {}
    for root in order:
        held = values[root] = {}
        # Models before copies of them, which a resumed script may have to make from these.
        for name, value in sorted(found[root].items(), key=lambda one: not taking.trains(one[1])):
            if name in dead.get(root, ()):
                continue
            try:
                held[name] = taking.take(value, f"{root}/{name}")
            except RefusedError as refusal:
                raise refusal.at(*place_of(frames, root, name)) from None
    return values


def changes(name: str) -> bool:
    """Whether the user's code changes something of this name."""
    files = [str(module.__file__) for module in user_modules().values()]
    return any(name in source.changed_names(file) for file in files)


def targets(frames: list[FrameType]) -> dict[str, Any]:
    """Plain values of the targets of all ``for`` loops around the frames, with their lines."""
    found: dict[str, Any] = {}
    for number, frame in enumerate(frames):
        loop = source.loop_at(frame.f_code.co_filename, scope_line(frame), frame.f_lineno)
        for name, line in loop.around:
            value = frame.f_locals.get(name)
            plain = type(value) in (int, float, str, bool)
            found[f"{number} {name} {line}"] = without(name, value) if plain else ""
        if loop.around:
            forget_locals(frame)
    return found


def moved_target(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The first target that has another value; empty where all are the same."""
    if before.keys() != after.keys():
        return next(iter(before.keys() ^ after.keys()))
    return next((key for key, value in before.items() if after[key] != value), "")


def _goes_on(moved: str, frames: list[FrameType]) -> RefusedError:
    number, name, line = moved.split(" ")
    file = frames[int(number)].f_code.co_filename if int(number) < len(frames) else ""
    return RefusedError(f"the loop over {name} goes on within one pass over the loader", file,
                        int(line))  # fmt: skip


def check_targets(one: Open, frames: list[FrameType]) -> dict[str, Any]:
    """The targets of the loops around, which must be what they were when the pass began."""
    around = targets(frames)
    moved = moved_target(one.targets, around)
    if moved:
        raise _goes_on(moved, frames)
    return around


def facts(loader: Any) -> dict[str, Any]:
    """What a loader must have in common with that of an earlier run."""
    dataset: Any = getattr(loader, "dataset", None)
    stream = isinstance(dataset, IterableDataset)
    return {
        "loader": type(loader).__name__,
        "dataset": type(dataset).__name__,
        "samples": -1 if stream or not hasattr(dataset, "__len__") else len(dataset),
        "batch": getattr(loader, "batch_size", None) or 0,
        "workers": int(getattr(loader, "num_workers", 0)),
        "stream": stream,
        "in_order": bool(getattr(loader, "in_order", True)),
    }
