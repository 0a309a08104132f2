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
from .refusal import RefusedError, or_refuse, refuse, say
from .resumed_run import ResumedRun, read
from .rounds import Rounds
from .saving import Saving
from .training import Decisions, Training
from .values.tensors import Known

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
        self._training, self._state = training, state
        self._outputs = Outputs(self._notes)
        self._noted: list[OutputOpened] = []
        self._passes = Passes(self._outputs.knows)
        self._feeds = Feeds(lambda: self._rounds.key is None)
        self._rounds = Rounds(self._passes, self._feeds, lambda frame: self.between_rounds(frame))
        about = self._passes, self._rounds, self._feeds, self._outputs, why_not
        self._saving = Saving(training, state, *about)
        self.between_rounds: Callable[[FrameType], bool] = lambda frame: True
        """Called at the end of a round that somebody waits for; False to be called again."""
        self._between: Any = None
        self._waiting = 0.0
        self._asking: Open | None = None
        self.loaded = 0.0
        """When the newest file that the script has loaded was written."""
        self._coming: ResumedRun | None = None
        self.goes_on: Callable[[], object] = lambda: None
        """Called when a resumed script has come to its place."""

    def follow(self) -> None:
        """This is the process of a script."""
        self.on = True
        self._outputs.watch()

    def _notes(self, opened: OutputOpened) -> None:
        """The script opens a file for writing, for the first time: a kill may come at any time."""
        self._noted.append(opened)
        if self._passes.open or self._passes.done or self._rounds.key is not None:
            self._tell_notes()

    def _tell_notes(self) -> None:
        noted, self._noted = self._noted, []
        for opened in noted:
            self._training.record_at(0, opened)

    @property
    def pending(self) -> bool:
        """Whether the script has yet to come to the place it is resumed from."""
        return self._coming is not None

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
        by_rounds = self._rounds.key is not None or self.trains_one_round
        self._rounds.expect_step()
        with aside():
            if by_rounds:  # a validation: a part of the round
                self._passes.settle(frame, 0)
            nested = by_rounds or self._passes.begins(steps, frame)
        if self._between is not None and not nested:
            self._between.remove()
            self._between = None
        return beginning, nested

    def began(self, loader: Any, iterator: Any, begun: tuple[Any, bool], steps: int) -> None:
        """Its iterator is there."""
        self._asking = None  # an iterator of before may have had the same id, or be the same
        self._passes.began(loader, iterator, begun[0], nested=begun[1], steps=steps)
        self._feeds.began(loader, iterator, begun[0], within=begun[1])

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
            self._passes.asks_first(one, frame, steps)
        one.before, one.now = one.now, steps

    def ends(self, iterator: Any, steps: int, frame: FrameType) -> None:
        """A loader is through."""
        self._feeds.ended(iterator)
        one = self._passes.find(iterator)
        if one is None:
            return
        passes = self._passes
        kept = steps and not one.nested and passes.broken is None and passes.jumps is None
        with aside():
            known = Known.of(self._state().models) if kept else Known()
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
        if self._coming is not None:
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
        hopeless = self._saving.hopeless or self._coming is not None
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
                mine = bool(opened) and one.f_locals.get("self") is opened[0].iterator()
                return one if mine else None
        return None

    def take(self, step: int, steps: int, frame: FrameType) -> dict[str, Any] | None:
        """What goes with a checkpoint so that it can be resumed from; None where it cannot."""
        return self._saving.take(step, steps, frame, self.decisions) if self.on else None

    def tell_hopeless(self, step: int) -> None:
        """After a step: record why this run cannot be resumed, as soon as that is known."""
        if self.on and self._coming is None:
            self._tell_notes()
            if int(os.environ.get("WORLD_SIZE", "1")) == 1:
                self._rounds.look_out(sys._getframe(1))
                self._saving.tell_hopeless(step, step)

    # ------------------------------------------------------------------ resuming

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint; the script has not begun yet."""
        with or_refuse():
            tree, saved = read(path)
            self._saving.goes_on(saved)
            about = tree, saved, path, self._training, self._passes, self._feeds, self._outputs
            self._coming = ResumedRun(*about)
            if self.trains_one_round:
                self._rounds.come_to(self._coming.saved["round"]["key"], self._arrive_by_round)

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
        coming.release()
        self._outputs.arrived()
        self.goes_on()
        if self.decisions is not None:
            self.decisions.restore(coming.saved["decisions"], feeds)
        steps = int(coming.saved["steps"])
        resumed = Resumed(file=str(coming.path), step=steps, exact=True, why="")
        self._training.record_at(steps, resumed)

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
                coming.release()

    def check_own(self, since: float) -> None:
        """Refuse a script that was said to resume by itself, trains, and has loaded nothing."""
        if since and self.loaded < since:
            refuse("the script has loaded nothing of its earlier run and would begin anew")

    def ended(self) -> None:
        """The process ends."""
        if self._coming is not None and self._coming.under_way:
            refuse("the script ended before it came to the place of the checkpoint")
