"""Resume of an unmodified script: the door that the guard's engine knocks at.

    first run      passes are numbered; with a checkpoint go its place in the data and the variables
    resumed run    the script runs from its first line; passes that were over hand out nothing and
                   leave the variables they left, the pass of the checkpoint goes on at its batch

In a first run a failure costs the resume, never the training. In a resumed run whatever does not
fit ends the process with one line: training on from a wrong state would be worse.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from torch.nn.modules.module import register_module_forward_pre_hook

from ..checkpoint.loader_pass import Beginning
from ..checkpoint.training_state import TrainingState
from ..diagnosis.aside import aside
from ..records.resuming import OutputOpened, Resumed
from ..source.frames import frames_from, user_line
from ..source.paths import from_here
from .feeds import Feeds
from .heads import Key
from .outputs import Outputs
from .passes import Open, Passes
from .phases import TrainingLoops, check_outcome, outcome
from .refusal import RefusedError, or_refuse, refuse, say
from .resumed_run import ResumedRun, files_of, read
from .rounds import Rounds
from .saving import Saving
from .training import DecisionState, Training
from .values.tensors import SavedTensors
from .way import Way

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
        self.decisions: DecisionState | None = None
        """What the guard decides by, which goes with a checkpoint."""
        self._training, self._state = training, state
        self._outputs = Outputs(self._notes)
        self._noted: list[OutputOpened] = []
        self._passes = Passes(self._outputs.knows)
        self._feeds = Feeds(lambda: self._rounds.key is None)
        self._rounds = Rounds(self._passes, self._feeds, lambda frame: self.between_rounds(frame))
        self._phases = TrainingLoops()
        about = self._passes, self._rounds, self._feeds, self._phases, self._outputs, why_not
        self._saving = Saving(training, state, *about)
        self.between_rounds: Callable[[FrameType], bool] = lambda frame: True
        """Called at the end of a round that somebody waits for; False to be called again."""
        self._between: Any = None
        self._waiting = 0.0
        self._asking: Open | None = None
        self.loaded = 0.0
        """When the newest file that the script has loaded was written."""
        self._coming: ResumedRun | None = None
        self._way = Way(say)
        self.goes_on: Callable[[], object] = lambda: None
        """Called when a resumed script has come to its place."""

    def follow(self) -> None:
        """This is the process of a script."""
        self.on = True
        self._outputs.watch()

    def _notes(self, opened: OutputOpened) -> None:
        """The script opens a file for writing, for the first time: a kill may come at any time."""
        self._noted.append(opened)
        if self._phases.trains or self._passes.open or self._passes.done:
            self._tell_notes()

    def _tell_notes(self) -> None:
        noted, self._noted = self._noted, []
        for opened in noted:
            self._training.record_at(0, opened)

    @property
    def pending(self) -> bool:
        """Whether the script has yet to come to the place it is resumed from."""
        return self._coming is not None or bool(self._way.stops)

    @property
    def busy(self) -> bool:
        """Whether a loader is read by holdfast itself."""
        return self._coming is not None and self._coming.reads

    # ------------------------------------------------------------------ what the loop does

    def begins(self, loader: Any, steps: int, frame: FrameType) -> tuple[Any, bool]:
        """A pass over a loader is about to begin: what to remember of it until ``began``."""
        self._feeds.begins(loader)
        beginning = Beginning(loader)
        self._tell_notes()
        self._turn(steps, frame)
        if self._walks:  # a part of a loop that is done again
            return beginning, True
        by_rounds = self._rounds.key is not None or self.trains_one_round
        self._rounds.expect_step()
        steps -= self._phases.base
        with aside():
            if by_rounds:  # a validation: a part of the round
                self._passes.settle(frame, 0)
            nested = by_rounds or self._passes.begins(steps, frame)
        if self._between is not None and not nested:
            self._between.remove()
            self._between = None
        return beginning, nested

    def began(self, loader: Any, iterator: Any, started: tuple[Any, bool], steps: int) -> None:
        """Its iterator is there."""
        self._asking = None  # an iterator of before may have had the same id, or be the same
        steps -= self._phases.base
        self._passes.began(loader, iterator, started[0], nested=started[1], steps=steps)
        self._feeds.began(loader, iterator, started[0], within=started[1])

    def asks_again(self, iterator: Any, steps: int) -> bool:
        """The common case of ``asks``: the loop that asked last asks again; False for any other."""
        one = self._asking
        if one is None or one.key != id(iterator) or one.now < 0 or self.pending:
            return False
        one.before, one.now = one.now, steps - self._phases.base
        return True

    def asks(self, iterator: Any, steps: int, frame: FrameType) -> None:
        """A loop asks for its next batch."""
        steps -= self._phases.base
        arrived = self._coming is not None and self._arrive(iterator, frame)
        one = self._asking = self._passes.find(iterator) if self._passes.open else None
        if one is None or arrived:
            return  # arrived: this is where the checkpoint was taken
        if one.now < 0:
            self._passes.asks_first(one, frame, steps)
        one.before, one.now = one.now, steps

    def ends(self, iterator: Any, steps: int, frame: FrameType) -> None:
        """A loader is through."""
        self._feeds.ended(iterator)
        steps -= self._phases.base
        one = self._passes.find(iterator)
        if one is None:
            return
        passes = self._passes
        kept = steps and not one.nested and passes.broken is None and passes.jumps is None
        with aside():
            known = SavedTensors.of(self._state().models) if kept else SavedTensors()
            passes.ends(one, known, steps, frame)
        if kept and self._between is None and passes.jumps is None:
            # What a model says after a pass cannot be said again without its weights.
            self._between = register_module_forward_pre_hook(self._called)

    def _called(self, module: Any, args: Any) -> None:
        if next(module.parameters(), None) is None:
            return  # a loss: what it says depends on nothing that was trained
        if self._between is not None:
            self._between.remove()
            self._between = None
        at = user_line(sys._getframe())
        if self._passes.jumps is None and at is not None and not self._passes.open:
            text = f"{type(module).__name__} is called outside of a loop over a DataLoader"
            self._passes.jumps = RefusedError(text, *at)

    # ------------------------------------------------------------------ saving

    def waits(self) -> bool:
        """Whether a checkpoint that is due should wait for a place that can be resumed from."""
        if self.pending:
            return True
        if not self.on or self._saving.hopeless:
            return False
        opened, by_rounds = self._passes.open, self._rounds.key is not None
        # A loop inside the loop of another is part of one round of that.
        good = bool(opened) and opened[0] is self._asking and 0 <= opened[0].before != opened[0].now
        good = good and self._passes.jumps_from(sys._getframe())
        if by_rounds:
            good = self._rounds.at_head or not self._saving.loop_is_here(sys._getframe())
        if good or not (opened or by_rounds):
            self._waiting = 0.0
            return False
        self._waiting = self._waiting or time.monotonic()
        return time.monotonic() - self._waiting < _PATIENCE

    @property
    def may_resume(self) -> bool:
        """Whether the loop trains on a loader, and nothing so far speaks against resuming it."""
        opened = self._passes.open
        hopeless = self._saving.hopeless or self.pending
        if not self.on or hopeless:
            return False
        if self._rounds.key is not None:
            return True
        if self._passes.trained and not (opened and opened[0] is self._asking):
            return True  # a validation, or what follows an epoch: the next pass comes
        if not opened or opened[0] is not self._asking:
            return False
        return self._passes.trained or opened[0].now > opened[0].steps

    def comes_soon(self, frame: FrameType) -> bool:
        """Whether a loop at work will be told of when its round is over; one over a loader is."""
        return self._rounds.key is None or self._rounds.wait(frame)

    def waits_for_worker(self, frame: FrameType | None) -> FrameType | None:
        """Where the loop waits for a worker of its loader, in this frame or around it.

        Until that answers, everything in this process is as it was when the loop asked.
        """
        if self._rounds.key is not None:
            return None  # amid a round
        for one in frames_from(frame):
            code, module = one.f_code, one.f_globals.get("__name__")
            if code.co_name == "_try_get_data" and module == "torch.utils.data.dataloader":
                opened = self._passes.open
                own = bool(opened) and one.f_locals.get("self") is opened[0].iterator()
                return one if own else None
        return None

    def take(self, step: int, steps: int, frame: FrameType) -> dict[str, Any] | None:
        """What goes with a checkpoint so that it can be resumed from; None where it cannot."""
        return self._saving.take(step, steps, frame, self.decisions) if self.on else None

    def tell_hopeless(self, step: int) -> None:
        """After a step: record why this run cannot be resumed, as soon as that is known."""
        if self.on and not self.pending:
            self._phases.trains = True
            self._tell_notes()
            if int(os.environ.get("WORLD_SIZE", "1")) == 1:
                frame = sys._getframe(1)
                if self._rounds.key is not None or not self._passes.open:
                    self._turn(step - 1, frame, stepping=True)
                self._phases.locate(frame)
                self._rounds.look_out(frame)
                self._saving.tell_hopeless(step, step - self._phases.base)

    def needed(self, *, resumable: bool) -> list[str]:
        """Names of files that the run cannot be gone on with after a checkpoint of this moment."""
        return self._phases.needed(newest=not resumable)

    def saved(self, path: Path) -> None:
        """A checkpoint that can be resumed from is being written."""
        self._phases.newest = str(path.absolute())

    def _turn(self, steps: int, frame: FrameType, *, stepping: bool = False) -> None:
        """Training goes on, perhaps in another loop than so far, which then begins anew.

        Args:
            steps: of the run, before the step at work.
            frame: where a loader is read or a step is made.
            stepping: it is a step, outside of any pass.
        """
        passes, phases = self._passes, self._phases
        if not phases.left(frame):
            return
        passes.settle(frame, steps - phases.base)
        known = passes.jumps is None and self._rounds.key is None and not stepping
        if known and not self.pending:
            # What follows is come to from pass to pass, as all so far was.
            phases.goes_on_without(len(passes.done))
            return
        with aside():
            left = {} if stepping else outcome(self._state())
        passes.next_loop(phases.next(steps, len(passes.done), left))
        self._rounds.next_loop()
        if self._walks:
            with or_refuse():
                check_outcome({} if stepping else self._way.over[0], self._state())
                phases.over[-1] = self._way.over.pop(0)
                self._way.stops.pop(0)
                self._comes_to_next()

    # ------------------------------------------------------------------ resuming

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint; the script has not begun yet."""
        with or_refuse():
            _, saved = read(path)
            self._saving.goes_on(saved)
            self._outputs.coming = files_of(saved, path, self._training.run_folder)
            self._way.begins(path, saved, self._stepped)
            self._comes_to_next()

    def _comes_to_next(self) -> None:
        """The next place that a resumed script comes to."""
        self._coming = None
        path, files = self._way.stops[0], self._outputs.coming
        if path is None or files is None:
            return
        tree, saved = read(path)
        about = tree, saved, path, self._training, self._passes, self._feeds, files
        self._coming = ResumedRun(*about)
        if self.trains_one_round:
            self._rounds.come_to(saved["round"]["key"], self._arrive_by_round)

    @property
    def _walks(self) -> bool:
        """Whether a training loop before that of the checkpoint is done again."""
        return self._coming is None and len(self._way.stops) > 0

    def _stepped(self, *about: Any) -> None:
        """A resumed script trains before it is there."""
        frame = sys._getframe(1)
        if self._walks:
            self._turn(0, frame, stepping=True)
        if self._outputs.coming is not None:
            self._outputs.coming.under_way = True
        self._phases.locate(frame)
        if self._coming is not None:
            self._coming.trains()

    @property
    def trains_before(self) -> bool:
        """Whether the script is to train before it comes to its place."""
        return len(self._way.stops) > 1 or self.trains_one_round

    @property
    def trains_one_round(self) -> bool:
        """Whether the script is to train one round that does not count, and then goes on."""
        return self._coming is not None and "round" in self._coming.saved

    def _arrive_by_round(self, frame: FrameType, key: Key) -> None:
        coming = self._coming
        assert coming is not None
        with or_refuse():
            coming.put_back_round(self._state(), frame, key, self._rounds)
            self._arrived(coming, self._rounds)

    def instead(self, loader: Any, frame: FrameType) -> Iterator[Any] | None:
        """In a resumed run: what to read in place of a loader; None for the loader itself."""
        self._turn(0, frame)
        return None if self._coming is None else self._coming.instead(loader, frame)

    def _arrive(self, iterator: Any, frame: FrameType) -> bool:
        """Put everything back where the pass of the checkpoint asks; False anywhere else."""
        coming = self._coming
        if coming is None or not coming.is_here(iterator):
            return False
        with or_refuse():
            coming.put_back(self._state(), iterator, frame)
            self._arrived(coming, iterator)
        return True

    def _arrived(self, coming: ResumedRun, feeds: Any) -> None:
        self._coming = None
        if not self._way.arrives():  # the rest of this loop is done again
            return
        self._phases.base, self._phases.newest = int(coming.saved.get("base", 0)), str(coming.path)
        steps = int(coming.saved["steps"])
        resumed = Resumed(file=str(coming.path), step=steps, exact=True, why="")
        self._training.record_at(steps, resumed)
        self._outputs.arrived()  # into the folder of the run, which is there now
        self.goes_on()
        if self.decisions is not None:
            self.decisions.restore(coming.saved["decisions"], feeds)

    # ------------------------------------------------------------------ while a script catches up

    def loads(self, file: Any, frame: FrameType) -> None:
        """The script loads a file: one that the earlier run has written is its own resume."""
        coming = self._coming
        if not isinstance(file, str | os.PathLike):
            return
        with contextlib.suppress(OSError):
            self.loaded = max(self.loaded, os.stat(file).st_mtime)
        if coming is None or coming.under_way or self.trains_one_round:
            return
        with contextlib.suppress(OSError):
            if os.stat(file).st_mtime >= self._saving.began:
                at = user_line(frame)
                where = f" at {from_here(at[0])}:{at[1]}" if at else ""
                say(
                    f"the script loads {os.fspath(file)} by itself{where} and goes on from that: "
                    "nothing of the checkpoint is used, and the same bits are not promised"
                )
                self._coming = self._outputs.coming = None
                self._way.leave()

    def check_own(self, since: float) -> None:
        """Refuse a script that was said to resume by itself, trains, and has loaded nothing."""
        if since and self.loaded < since:
            refuse("the script has loaded nothing of its earlier run and would begin anew")

    def ended(self) -> None:
        """The process ends."""
        if self._walks or (self._coming is not None and self._coming.under_way):
            refuse("the script ended before it came to the place of the checkpoint")
