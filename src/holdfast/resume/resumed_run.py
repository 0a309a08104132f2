"""A resumed script, on its way from its first line to the place of its checkpoint.

Passes that were over hand out nothing and leave the variables they left; the pass of the checkpoint
begins at its batch. Whatever does not fit ends the process.
"""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader

from ..checkpoint import rng
from ..checkpoint.file import load
from ..checkpoint.loader_pass import Beginning, LoaderPass
from ..checkpoint.training_state import RNG, TrainingState
from ..errors import CheckpointError, HoldfastError
from ..records.resuming import OutputOpened
from ..redaction import redact_command, same_command
from ..run import LaneReader, Run
from . import frames as frames_
from . import late_pass
from .counters import counters, set_counts
from .feeds import Feeds
from .leading import LoadedAgain, lead_through
from .outputs import Coming
from .passes import Open, Passes, Values, changes, facts, moved_target, targets
from .refusal import RefusedError, or_refuse, refuse, refuse_at, say
from .rounds import Rounds
from .saving import DATASET, FORMAT
from .sight import Sight
from .standing import loops_around_a_question, loops_at_work, put_back
from .streams import begin_stream, put_stream
from .training import Training
from .values import generators
from .values.admitted import is_name
from .values.checking import difference
from .values.nodes import MISSING, shown
from .values.restoring import ValueRestoring
from .values.taking import Taking
from .values.tensors import SavedTensors


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A checkpoint, and what it says of the script; ends the process where that does not fit."""
    try:
        tree, _ = load(path)
    except CheckpointError as error:
        refuse(f"{error}")
    saved = tree.get("resume")
    if saved is None or saved["format"] != FORMAT:
        refuse(f"{path.name} does not say where the script was")
    here = platform.python_version()
    if saved["python"].rsplit(".", 1)[0] != here.rsplit(".", 1)[0]:
        refuse(f"it was saved by Python {saved['python']}, this is {here}")
    if not same_command(saved["argv"], sys.argv):
        refuse(f"it was saved by `{' '.join(redact_command(saved['argv']))}`")
    return tree, saved


class ResumedRun:
    """Where a resumed script has to come to, and what it finds on the way.

    Args:
        tree: the checkpoint.
        saved: what it says of the script.
        path: of its file.
        training: of this process.
        passes: over loaders, so far.
        feeds: iterators over loaders, so far.
        files: that the script writes.
    """

    def __init__(
        self,
        tree: dict[str, Any],
        saved: dict[str, Any],
        path: Path,
        training: Training,
        passes: Passes,
        feeds: Feeds,
        files: Coming,
    ) -> None:
        self.saved, self.path = saved, path
        self.under_way = False
        """Whether the first loader was asked for."""
        self.reads = False
        """Whether a loader is read by holdfast itself."""
        self._tree, self._training, self._passes = tree, training, passes
        self._feeds, self._work = feeds, LoadedAgain()
        self._iterator = 0
        self._late: Any = None
        """The loader of a pass that begins once everything is put back."""
        passes.began_at = float(saved["trained"])
        self._files = files

    # ------------------------------------------------------------------ on the way

    def instead(self, loader: Any, frame: FrameType) -> Iterator[Any] | None:
        """What to read in place of a loader; None for the loader itself."""
        if not isinstance(loader, DataLoader) or "round" in self.saved:
            return None
        passes = self._passes
        with or_refuse():
            passes.settle(frame, 0)
            if passes.open:
                return None
            number = len(passes.done)
            before = self.saved["passes"]
            if number < len(before) and before[number].get("real"):
                return None
            if not self.under_way:
                self.under_way = self._files.under_way = True
                passes.look(frame)
            if number < len(before):
                _check_facts(loader, before[number]["loader"])
                if "lasting" in before[number]:
                    self.reads = True
                    lead_through(loader, before[number]["lasting"], self._work)
                    self.reads = False
                return _Over(self, before[number])
            jumps = "jump" in self.saved
            if jumps and (self.saved.get("late") or _other_facts(loader, self.saved["loader"])):
                iterator: Any = late_pass.waiting(loader)
                passes.takes_up(loader, iterator, Beginning(loader))
                self._late = loader
            else:
                iterator, beginning = self._again(loader)
                passes.takes_up(loader, iterator, beginning)
                self._feeds.began(loader, iterator, beginning, within=False)
            self._iterator = id(iterator)
            return iterator

    def _again(self, loader: Any) -> tuple[Any, Beginning]:
        """The iterator of the pass of the checkpoint, at its batch, and how the pass began."""
        _check_facts(loader, self.saved["loader"])
        self.reads = True
        stream = self.saved.get("stream")
        # A stream in this process is put where it was, not drawn from once more.
        started = {"batches": 0} if stream is not None else {}
        led = getattr(loader, "_iterator", None) is not None
        about = loader, {**self.saved["pass"], **started}
        loader_pass = LoaderPass.again(*about, fast=False, say=say, led=led)
        self.reads = False
        if loader_pass.why:
            raise RefusedError(loader_pass.why)
        if stream is not None:
            begin_stream(loader_pass.iterator, stream, int(self.saved["pass"]["batches"]))
        return loader_pass.iterator, loader_pass.beginning()

    def _begin_late(self, one: Open, iterator: Any) -> None:
        """Everything is as it was at the checkpoint: begin the pass, and start its workers."""
        loader, self._late = self._late, None
        made, one.beginning = self._again(loader)
        one.loader = facts(loader)
        late_pass.begin(loader, iterator, made)
        self._feeds.began(loader, iterator, one.beginning, within=False)
        self._passes.look_at_workers(one)

    def over(self, record: Mapping[str, Any], frame: FrameType) -> None:
        """A pass that was over is asked for a batch: the variables become what it left."""
        with or_refuse():
            frames = frames_.chain(frame)
            self._check_files()
            _check_position(record, frames)
            values, reported = self._passes.over(dict(record))
            _put(frames, values)
            generators.put_into_process(reported)
            for optimizer, _ in self._training.guards():
                # Schedules warn of a step of theirs before the first one of the optimizer.
                vars(optimizer)["_opt_called"] = True

    # ------------------------------------------------------------------ at its place

    def is_here(self, iterator: Any) -> bool:
        """Whether this is the iterator of the pass that the checkpoint was taken in."""
        return self._iterator == id(iterator)

    def put_back(self, state: TrainingState, iterator: Any, frame: FrameType) -> None:
        """The loop asks for the batch that it asked for then: everything becomes what it was."""
        saved, frames = self.saved, frames_.chain(frame)
        self._check_files()
        _check_position(saved, frames, targets_count="jump" not in saved)
        one = self._passes.find(iterator)
        assert one is not None
        one.asked(frame)
        self._passes.first = dict(saved["first"])  # where the next process will come by, too
        set_counts(counters(iterator, frame), saved["counts"])
        jumps = "jump" in saved
        loops = loops_around_a_question(frames) if jumps else []
        parts = {"models", "optimizers", "gradients"}
        state.put_back({**self._tree, "gradients": saved["gradients"]}, parts=parts)
        feed = self._feeds.of(iterator)
        loader = feed.loader() if feed is not None and saved["loader"]["workers"] else None
        sight = Sight.of(loader, iterator) if loader is not None else None
        restoring = _put(frames, saved["values"])
        if self._late is not None:
            self._begin_late(one, iterator)
            restoring = _put(frames, saved["values"])  # what the beginning has changed
        if jumps:
            put_back(loops, saved["jump"], frames, restoring.value)
            self._passes.jumps = RefusedError("this process has gone on from amid the training")
        if "stream" in saved:
            put_stream(iterator, saved["stream"], "stream", restoring.value)
            iterator._num_yielded = int(saved["pass"]["batches"])
        # One that no variable holds, as in `for x in DataLoader(Rows())`.
        dataset = getattr(iterator, "_dataset", MISSING)
        if restoring.value(dataset, saved["dataset"], DATASET) is not dataset:
            raise RefusedError("the loader reads another dataset than it did")
        if sight is not None and (changed := sight.changed(iterator)):
            text = f"the workers of the loader have begun before {changed} was what it was then"
            raise RefusedError(text, frames[-1].f_code.co_filename, one.lines[0])
        _check(frames, saved["values"], self._taking(state, frames))
        rng.put_back(saved[RNG])
        one.steps = one.now = int(saved["steps"]) - int(saved.get("base", 0))
        self._passes.resumed(one.steps)

    def trains(self) -> None:
        """The script trains on its way: one round where no loader says where it was."""
        if "round" not in self.saved:
            refuse("the script trains before it comes to the place of the checkpoint")
        # Files take in what the round writes: it is cut off again when it is over.
        self.under_way = True

    def put_back_round(
        self, state: TrainingState, frame: FrameType, key: list[Any], rounds: Rounds
    ) -> None:
        """The first round is over: everything becomes what it was at the end of a later one."""
        saved, frames, passes = self.saved, frames_.chain(frame), self._passes
        self._check_files()
        _check_position(saved["round"], frames, targets_count=False)
        rounds.begins_anew(frame, key)
        passes.look(frame, self._feeds.take)
        parts = {"models", "optimizers", "gradients"}
        state.put_back({**self._tree, "gradients": saved["gradients"]}, parts=parts)
        self._put_round(frames, key)
        self.reads = True
        if self._feeds.lead():
            # Samplers have drawn, of generators that were where they should be already.
            self._put_round(frames, key)
            self._feeds.forget_wanted()
        self.reads = False
        _check(frames, saved["values"], self._taking(state, frames))
        rng.put_back(saved[RNG])
        passes.resumed(int(saved["steps"]) - int(saved.get("base", 0)))

    def _taking(self, state: TrainingState, frames: list[FrameType]) -> Taking:
        """Another look, as that which made the checkpoint."""
        passes, known = self._passes, SavedTensors.of(state.models)
        # Only where a script goes on by its rounds do iterators over loaders go on by themselves.
        feed = self._feeds.take if "round" in self.saved else None
        about = {"feed": feed, "running": frames, "knows": passes.knows}
        return Taking(known, passes.baseline, changes, **about)

    def _put_round(self, frames: list[FrameType], key: list[Any]) -> None:
        """Give the variables their values, and have the loops stand where they stood."""
        loops = loops_at_work(frames, key[2])
        restoring = _put(frames, self.saved["values"], self._feeds.put)
        put_back(loops, self.saved["round"]["places"], frames, restoring.value)

    def _check_files(self) -> None:
        """Refuse code that is not that of the earlier run."""
        then = self.saved["files"]
        for file, digest in frames_.digests().items():
            if then.get(file, digest) != digest:
                raise RefusedError(f"{file} has changed since")


def files_of(saved: Mapping[str, Any], path: Path, folder: Callable[[], Path | None]) -> Coming:
    """What the files of the script were at a checkpoint; what is cut off goes into a folder."""
    since = float(saved["trained"])
    return Coming(saved.get("outputs", ()), first_lengths(path), since, folder, refuse_at)


def first_lengths(checkpoint: Path) -> dict[str, int]:
    """Lengths of files when the run of a checkpoint opened them first."""
    found: dict[str, int] = {}
    with contextlib.suppress(HoldfastError, OSError):
        run = Run.open(checkpoint.parent.parent)
        for lane in run.lanes():
            for event in LaneReader(run, lane).events():
                if (opened := OutputOpened.of(event)) is not None:
                    found.setdefault(opened.file, opened.bytes)
    return found


class _Over:
    """A pass that was over before the checkpoint: it hands out nothing."""

    def __init__(self, run: ResumedRun, record: Mapping[str, Any]) -> None:
        self._run, self._record = run, record

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        record, self._record = self._record, {}
        if record:
            self._run.over(record, sys._getframe())
        raise StopIteration


def _put(
    frames: list[FrameType], values: Values, put_feed: Callable[..., object] | None = None
) -> ValueRestoring:
    """Give the variables their values; what was put back goes on knowing them."""
    live = frames_.variables(frames)
    restoring = ValueRestoring(put_feed)
    new: dict[str, dict[str, Any]] = {}
    for root, held in values.items():
        if root not in live:
            raise RefusedError(f"{root} is not there in the resumed run")
        new[root] = {}
        for name, node in held.items():
            old = live[root].get(name, MISSING)
            try:
                value = restoring.value(old, node, f"{root}/{name}")
            except RefusedError as refusal:
                raise refusal.at(*frames_.place_of(frames, root, name)) from None
            if value is old:
                continue
            if not is_name(name):
                raise RefusedError(f"{name} is no variable of the script")
            new[root][name] = value
    frames_.put(frames, new)
    return restoring


def _check(frames: list[FrameType], values: Values, taking: Taking) -> None:
    """Refuse variables that are not what they were although they were put back."""
    live = frames_.variables(frames)
    for root, held in values.items():
        for name, node in held.items():
            path = f"{root}/{name}"
            try:
                here = taking.take(live[root].get(name), path)
            except RefusedError:
                continue  # it could be saved then: a resumed script has it in another way
            found = difference(node, here, path)
            if found:
                text = f"{shown(found)} is not what it was at the checkpoint"
                raise RefusedError(text, *frames_.place_of(frames, root, name))


def _other_facts(loader: Any, saved: Mapping[str, Any]) -> str:
    """What a loader has not in common with that of the earlier run; empty where it is the same."""
    here = facts(loader)
    other = (key for key, value in saved.items() if here[key] != value)
    return next((f"{key} {here[key]}, it had {saved[key]}" for key in other), "")


def _check_facts(loader: Any, saved: Mapping[str, Any]) -> None:
    other = _other_facts(loader, saved)
    if other:
        raise RefusedError(f"the loader has {other}")


def _check_position(
    saved: Mapping[str, Any], frames: list[FrameType], *, targets_count: bool = True
) -> None:
    if saved["position"] != frames_.position(frames):
        then = saved["position"][-1] if saved["position"] else ["?", "?", 0]
        at = frames[-1]
        raise RefusedError(
            f"the script comes to another loop than it did then ({then[0]}, {then[1]})",
            at.f_code.co_filename,
            at.f_lineno,
        )
    moved = moved_target(saved["targets"], targets(frames)) if targets_count else ""
    if moved:
        number, name, line = moved.split(" ")
        file = frames[int(number)].f_code.co_filename
        text = f"the loop over {name} is not where it was then"
        raise RefusedError(text, file, int(line))
