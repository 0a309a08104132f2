"""Resume of an unmodified script: the door that the guard's engine knocks at.

    first run      passes are numbered; with a checkpoint go its place in the data and the variables
    resumed run    the script runs from its first line; passes that were over hand out nothing and
                   leave the variables they left, the pass of the checkpoint goes on at its batch

In a first run a failure costs the resume, never the training. In a resumed run whatever does not
fit ends the process with one line: training on from a wrong state would be worse.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader

from ..checkpoint import optimizer_state, rng
from ..checkpoint.file import load
from ..checkpoint.loader_pass import LASTING, Beginning, LoaderPass
from ..checkpoint.training_state import RNG, TrainingState
from ..diagnosis.source.files import from_here
from ..diagnosis.source.place import frames_from, user_line
from ..errors import CheckpointError, HoldfastError
from . import frames as frames_
from . import source
from .counters import counters, counts, set_counts
from .outputs import Outputs
from .passes import (
    Open,
    Passes,
    Values,
    changes,
    check_targets,
    facts,
    moved_target,
    place,
    take_variables,
    targets,
)
from .refusal import RefusedError
from .training import Decisions, Training
from .values import generators
from .values.nodes import MISSING
from .values.restoring import Restoring
from .values.taking import Taking
from .values.tensors import Known

FORMAT = 2
DATASET = "loader/its dataset"
"""Where the dataset of the pass stands among what is taken."""
_PATIENCE = 600.0
"""Seconds that a checkpoint waits for a place that can be resumed from."""


class ScriptResume:
    """Makes checkpoints of an unmodified script resumable, and resumes it.

    Args:
        training: of this process.
        state: the live models and optimizers.
        why_not: why no run with these settings can be resumed; empty otherwise.
    """

    def __init__(
        self, training: Training, state: Callable[[], TrainingState], why_not: str = ""
    ) -> None:
        self.on = False
        """Whether this is the process of a script, whose passes are followed."""
        self.decisions: Decisions | None = None
        """What the guard decides by, which goes with a checkpoint."""
        self._training, self._state, self._why_not = training, state, why_not
        self._passes = Passes()
        self._between: Any = None
        self._began = time.time()
        # Python and numpy begin with another state in every process.
        self._seeds = {key: one for key, one in rng.state().items() if key in ("python", "numpy")}
        self._waiting = 0.0
        self._asking: Open | None = None
        self.loaded = 0.0
        """When the newest file that the script has loaded was written."""
        self._told: tuple[Any, ...] = ()
        self._coming: _Coming | None = None
        self.busy = False
        """Whether a loader is read by holdfast itself."""

    @property
    def pending(self) -> bool:
        """Whether the script has yet to come to the place it is resumed from."""
        return self._coming is not None

    # ------------------------------------------------------------------ what the loop does

    def begins(self, loader: Any, steps: int, frame: FrameType) -> tuple[Any, bool]:
        """A pass over a loader is about to begin: what to remember of it until ``began``."""
        beginning = Beginning(loader)
        nested = self._passes.begins(loader, beginning, steps, frame)
        if self._between is not None and not nested:
            self._between.remove()
            self._between = None
        return beginning, nested

    def began(self, loader: Any, iterator: Any, begun: tuple[Any, bool], steps: int) -> None:
        """Its iterator is there."""
        self._asking = None  # an iterator of before may have had the same id, or be the same
        self._passes.began(loader, iterator, begun[0], nested=begun[1], steps=steps)

    def asks_again(self, iterator: Any, steps: int) -> bool:
        """The common case of ``asks``: the loop that asked last asks again; False for any other."""
        one = self._asking
        if one is None or one.key != id(iterator) or one.now < 0 or self._coming is not None:
            return False
        one.before, one.now = one.now, steps
        return True

    def asks(self, iterator: Any, steps: int, frame: FrameType) -> None:
        """A loop asks for its next batch."""
        arrived = self._coming is not None and self._arrive(iterator, frame)
        one = self._asking = self._passes.find(iterator) if self._passes.open else None
        if one is None or arrived:
            return  # arrived: this is where the checkpoint was taken
        if one.now < 0:
            one.asked(frame)
        one.before, one.now = one.now, steps

    def ends(self, iterator: Any, steps: int, frame: FrameType) -> None:
        """A loader is through."""
        one = self._passes.find(iterator)
        if one is None:
            return
        kept = steps and not one.nested and self._passes.broken is None
        known = Known.of(self._state().models) if kept else Known()
        self._passes.ends(one, known, steps, frame)
        if kept and self._between is None and self._passes.broken is None:
            # What a model says after a pass cannot be said again without its weights.
            self._between = register_module_forward_pre_hook(self._called)

    def _called(self, module: Any, args: Any) -> None:
        if next(module.parameters(), None) is None:
            return  # a loss: what it says depends on nothing that was trained
        if self._between is not None:
            self._between.remove()
            self._between = None
        at = user_line(sys._getframe())
        if self._passes.broken is None and at is not None and not self._passes.open:
            text = f"{type(module).__name__} is called outside of a loop over a DataLoader"
            self._passes.broken = RefusedError(text, *at)

    # ------------------------------------------------------------------ saving

    def waits(self) -> bool:
        """Whether a checkpoint that is due should wait for a place that can be resumed from."""
        if self._coming is not None:
            return True
        if not self.on or self._why_not or self._passes.broken is not None:
            return False
        opened = self._passes.open
        # A loop inside the loop of another is part of one round of that.
        good = bool(opened) and opened[0] is self._asking and 0 <= opened[0].before != opened[0].now
        if good or not opened:
            self._waiting = 0.0
            return False
        self._waiting = self._waiting or time.monotonic()
        return time.monotonic() - self._waiting < _PATIENCE

    @property
    def may_resume(self) -> bool:
        """Whether the loop trains on a loader, and nothing so far speaks against resuming it."""
        opened = self._passes.open
        hopeless = self._why_not or self._passes.broken is not None or self._coming is not None
        if not self.on or hopeless or not opened or opened[0] is not self._asking:
            return False
        return opened[0].now > opened[0].steps

    def waits_for_worker(self, frame: FrameType | None) -> FrameType | None:
        """Where the loop waits for a worker of its loader, in this frame or around it.

        Until that answers, everything in this process is as it was when the loop asked.
        """
        for one in frames_from(frame):
            code, module = one.f_code, one.f_globals.get("__name__")
            if code.co_name == "_try_get_data" and module == "torch.utils.data.dataloader":
                opened = self._passes.open
                mine = bool(opened) and one.f_locals.get("self") is opened[0].iterator()
                return one if mine else None
        return None

    def take(self, step: int, steps: int, frame: FrameType) -> dict[str, Any] | None:
        """What goes with a checkpoint so that it can be resumed from; None where it cannot."""
        if not self.on:
            return None
        try:
            tree = self._take(steps, frame)
        except RefusedError as refusal:
            self._tell(step, False, refusal.reason, **place(refusal))
            return None
        except Exception as error:
            self._passes.broken = RefusedError(f"{type(error).__name__}: {error}")
            self._training.failure("resume", error)
            self._tell(step, False, f"holdfast failed on it: {error}")
            return None
        self._tell(step, True, "")
        return tree

    def without_loader(self, step: int) -> None:
        """A checkpoint is made in a loop that makes its own data."""
        if self.on and not (self._passes.done or self._passes.open):
            self._tell(step, False, "the training loop reads no DataLoader")

    def _tell(self, step: int, accepted: bool, reason: str, file: str = "", line: int = 0) -> None:
        told = accepted, reason, file, line
        if told == self._told:
            return
        self._told = told
        script = os.path.abspath(sys.argv[0]) if sys.argv else ""
        data = {"accepted": accepted, "reason": reason, "file": file, "line": line}
        own = source.loads_optimizer(script)
        self._training.record_at("resumable", step, {**data, "own": own})

    def _take(self, steps: int, frame: FrameType) -> dict[str, Any]:
        passes = self._passes
        passes.settle(frame, steps)
        if self._why_not:
            raise RefusedError(self._why_not)
        if passes.broken is not None:
            raise passes.broken.alone()
        if multiprocessing.parent_process() is not None:
            raise RefusedError("the training runs in a child process of the script")
        if not in_main_thread():
            raise RefusedError("a thread of the script reads the loader")
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise RefusedError("several ranks are not resumed")
        if not passes.open:
            raise RefusedError("the training loop reads no DataLoader")
        if len(passes.open) > 1:
            one = passes.open[-1]
            file = one.code.co_filename if one.code is not None else ""
            raise RefusedError("two loaders are read side by side", file, one.lines[0])
        one = passes.open[0]
        iterator = one.iterator()
        _check_loader(one)
        frames_.check_reader(frame)
        for optimizer, _ in self._training.guards():
            if isinstance(optimizer, torch.optim.LBFGS):
                raise RefusedError("LBFGS takes several looks at the model in one step")
        decisions = self.decisions.state(iterator) if self.decisions is not None else {}
        if decisions is None:
            raise RefusedError("something is suspected of having damaged the weights")
        frames = frames_.chain(frame)
        state = self._state()
        taking = Taking(Known.of(state.models), passes.baseline, changes, running=frames)
        values = take_variables(taking, frames)
        try:
            dataset = taking.take(getattr(iterator, "_dataset", None), DATASET)
        except RefusedError as refusal:
            raise refusal.at(frames[-1].f_code.co_filename, one.lines[0]) from None
        gradients = [
            {number: grad.clone() for number, grad in optimizer_state.gradients(one_).items()}
            for one_ in state.optimizers
        ]
        return {
            "format": FORMAT,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "began": self._began,
            "trained": passes.began_at,
            "seeds": self._seeds,
            "argv": [str(word) for word in sys.argv],
            "files": frames_.digests(),
            "steps": steps,
            "passes": list(passes.done),
            "pass": one.beginning.state(getattr(iterator, "_num_yielded", 0)),
            "loader": one.loader,
            "position": frames_.position(frames),
            "targets": check_targets(one, frames),
            "counts": counts(counters(iterator, frame)),
            "values": values,
            "dataset": dataset,
            "gradients": gradients,
            "decisions": decisions,
            RNG: rng.state(),
        }

    # ------------------------------------------------------------------ resuming

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint; the script has not begun yet."""
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
        if saved["argv"] != [str(word) for word in sys.argv]:
            refuse(f"it was saved by `{' '.join(saved['argv'])}`")
        self._began = float(saved["began"])
        self._seeds = saved["seeds"]
        rng.put_back({**rng.state(), **self._seeds})
        self._passes.began_at = float(saved["trained"])
        self._coming = _Coming(tree, saved, path)

    def instead(self, loader: Any, frame: FrameType) -> Iterator[Any] | None:
        """In a resumed run: what to read in place of a loader; None for the loader itself."""
        coming = self._coming
        if coming is None or not isinstance(loader, DataLoader):
            return None
        passes = self._passes
        with _or_refuse():
            passes.settle(frame, 0)
            if passes.open:
                return None
            number = len(passes.done)
            before = coming.saved["passes"]
            if number < len(before) and before[number].get("real"):
                return None
            if not coming.under_way:
                coming.under_way = coming.outputs.under_way = True
                passes.look(frame)
            if number < len(before):
                _check_facts(loader, before[number]["loader"])
                return _Over(self, before[number])
            _check_facts(loader, coming.saved["loader"])
            self.busy = True
            loader_pass = LoaderPass.again(loader, coming.saved["pass"], fast=False, say=_say)
            self.busy = False
            if loader_pass.why:
                raise RefusedError(loader_pass.why)
            iterator: Any = loader_pass.iterator
            passes.takes_up(loader, iterator, loader_pass.beginning())
            coming.iterator = id(iterator)
            return iterator

    def over(self, record: Mapping[str, Any], frame: FrameType) -> None:
        """A pass that was over is asked for a batch: the variables become what it left."""
        with _or_refuse():
            frames = frames_.chain(frame)
            self._check_files()
            _check_position(record, frames)
            values, told = self._passes.over(dict(record))
            _put(frames, values)
            generators.put_into_process(told)
            for optimizer, _ in self._training.guards():
                # Schedules warn of a step of theirs before the first one of the optimizer.
                vars(optimizer)["_opt_called"] = True

    def _arrive(self, iterator: Any, frame: FrameType) -> bool:
        """Put everything back where the pass of the checkpoint asks; False anywhere else."""
        coming = self._coming
        if coming is None or coming.iterator != id(iterator):
            return False
        with _or_refuse():
            frames = frames_.chain(frame)
            saved = coming.saved
            self._check_files()
            _check_position(saved, frames)
            one = self._passes.find(iterator)
            assert one is not None
            one.asked(frame)
            set_counts(counters(iterator, frame), saved["counts"])
            state = self._state()
            parts = {"models", "optimizers", "gradients"}
            state.put_back({**coming.tree, "gradients": saved["gradients"]}, parts=parts)
            restoring = _put(frames, saved["values"])
            # One that no variable holds, as in `for x in DataLoader(Rows())`.
            dataset = getattr(iterator, "_dataset", MISSING)
            if restoring.value(dataset, saved["dataset"], DATASET) is not dataset:
                raise RefusedError("the loader reads another dataset than it did")
            rng.put_back(saved[RNG])
            steps = int(saved["steps"])
            one.steps, one.now = steps, steps
            self._passes.resumed(steps)
            self._coming = None
            coming.release()
            if self.decisions is not None:
                self.decisions.restore(saved["decisions"], iterator)
            data = {"file": str(coming.path), "step": steps, "exact": True, "why": ""}
            self._training.record_at("resume", steps, data)
        return True

    def _check_files(self) -> None:
        """Refuse code that is not that of the earlier run."""
        assert self._coming is not None
        then = self._coming.saved["files"]
        for file, digest in frames_.digests().items():
            if then.get(file, digest) != digest:
                raise RefusedError(f"{file} has changed since")

    # ------------------------------------------------------------------ while a script catches up

    def holds_off_saving(self) -> bool:
        """Whether the script's own ``torch.save`` must not write: it has written this before."""
        return self._coming is not None

    def loads(self, file: Any, frame: FrameType) -> None:
        """The script loads a file: one that the earlier run has written is its own resume."""
        coming = self._coming
        if not isinstance(file, str | os.PathLike):
            return
        with contextlib.suppress(OSError):
            self.loaded = max(self.loaded, os.stat(file).st_mtime)
        if coming is None or coming.under_way:
            return
        with contextlib.suppress(OSError):
            if os.stat(file).st_mtime >= self._began:
                at = user_line(frame)
                where = f" at {from_here(at[0])}:{at[1]}" if at else ""
                _say(f"the script loads {os.fspath(file)} by itself{where}: left alone")
                self._coming = None
                coming.release()

    def check_own(self, since: float) -> None:
        """Refuse a script that was said to resume by itself, trains, and has loaded nothing."""
        if since and self.loaded < since:
            refuse("the script has loaded nothing of its earlier run and would begin anew")

    def ended(self) -> None:
        """The process ends."""
        if self._coming is not None and self._coming.under_way:
            refuse("the script ended before it came to the place of the checkpoint")


class _Coming:
    """Where a resumed script has to come to."""

    def __init__(self, tree: dict[str, Any], saved: dict[str, Any], path: Path) -> None:
        self.tree, self.saved, self.path = tree, saved, path
        self.iterator = 0
        self.under_way = False
        self.outputs = Outputs(float(saved["trained"]), _refuse_at)
        self._hook: Any = register_optimizer_step_pre_hook(_refuse_step)

    def release(self) -> None:
        """The script may train and write."""
        self._hook.remove()
        self.outputs.release()


def _refuse_step(*about: Any) -> None:
    refuse("the script trains before it comes to the place of the checkpoint")


class _Over:
    """A pass that was over before the checkpoint: it hands out nothing."""

    def __init__(self, script: ScriptResume, record: Mapping[str, Any]) -> None:
        self._script, self._record = script, record

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        record, self._record = self._record, {}
        if record:
            self._script.over(record, sys._getframe())
        raise StopIteration


def _put(frames: list[FrameType], values: Values) -> Restoring:
    """Give the variables their values; what was put back goes on knowing them."""
    live = frames_.variables(frames)
    restoring = Restoring()
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
            if value is not old:
                new[root][name] = value
    frames_.put(frames, new)
    return restoring


def in_main_thread() -> bool:
    """Whether the loop runs where the script began: its variables are on this stack."""
    return threading.current_thread() is threading.main_thread()


def _check_loader(one: Open) -> None:
    file, loader = one.code.co_filename if one.code is not None else "", one.loader
    if loader["stream"]:
        text = f"{loader['dataset']} is an iterable dataset: it has no place to go on from"
        raise RefusedError(text, file, one.lines[0])
    if not loader["in_order"]:
        raise RefusedError("in_order=False hands out batches as they come", file, one.lines[0])
    origin = one.beginning.origin
    if origin is None:
        raise RefusedError("how its pass began is not known", file, one.lines[0])
    if origin["reused"] and loader["workers"]:
        raise RefusedError(f"{LASTING} (persistent_workers)", file, one.lines[0])


def _check_facts(loader: Any, saved: Mapping[str, Any]) -> None:
    here = facts(loader)
    for key, value in saved.items():
        if here[key] != value:
            raise RefusedError(f"the loader has {key} {here[key]}, it had {value}")


def _check_position(saved: Mapping[str, Any], frames: list[FrameType]) -> None:
    if saved["position"] != frames_.position(frames):
        then = saved["position"][-1] if saved["position"] else ["?", "?", 0]
        at = frames[-1]
        raise RefusedError(
            f"the script comes to another loop than it did then ({then[0]}, {then[1]})",
            at.f_code.co_filename,
            at.f_lineno,
        )
    moved = moved_target(saved["targets"], targets(frames))
    if moved:
        number, name, line = moved.split(" ")
        file = frames[int(number)].f_code.co_filename
        text = f"the loop over {name} is not where it was then"
        raise RefusedError(text, file, int(line))


@contextlib.contextmanager
def _or_refuse() -> Iterator[None]:
    """What goes wrong while a script is resumed ends it."""
    try:
        yield
    except RefusedError as refusal:
        _refuse_at(refusal.reason, refusal.file, refusal.line)
    except HoldfastError as error:
        refuse(str(error))
    except Exception as error:
        refuse(f"{type(error).__name__}: {error}")


def _refuse_at(reason: str, file: str, line: int) -> NoReturn:
    refuse(f"{reason}, at {from_here(file)}:{line}" if file else reason)


def refuse(reason: str) -> NoReturn:
    """End the process with one line, before anything is trained."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    text = " ".join(reason.split())
    _say(f"cannot resume: {text}; start anew without --resume")
    os._exit(2)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"holdfast: {text}\n".encode())
