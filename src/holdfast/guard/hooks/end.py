"""The process ends: its state is saved, its last words are written and the record is closed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import FrameType

from ...diagnosis.crash import exception
from ...diagnosis.crash.given_up import behind
from ...diagnosis.crash.record import ends_the_run
from ...records.memory import MemoryRanOut
from ...recovery.all_ranks import END
from ...recovery.last_state import Moment
from ..engine_state import EngineState
from ..fail_open import EnginePart, attempt, fail_open
from ..last_words import LastWords


class EndHooks(EnginePart):
    """Hooks of the end, by an exception, by a signal or as it was meant.

    Args:
        state: of the engine.
        in_step: whether an optimizer is busy with a step.
    """

    def __init__(
        self,
        state: EngineState,
        in_step: Callable[[], bool],
    ) -> None:
        super().__init__(state)
        self._training, self._writer, self._recovery = state.training, state.writer, state.recovery
        self._script = state.recovery.checkpoints.script
        self._last_state, self._position = state.last_state, state.position
        self._batch_source, self._window, self._fast = state.batch_source, state.window, state.fast
        self._investigation, self._watchers = state.investigation, state.watchers
        self._in_step = in_step

    def end(self, error: BaseException | None = None, gave_up: object = None) -> None:
        """End of the process, with its ``error`` if any: record it and close.

        ``gave_up``: what the script exited with after it had caught the error.
        """
        if isinstance(error, SystemExit):
            gave_up, error = error.code, behind(error)
        if error is None:
            self._script.ended()
        if self._training.recorder is None and not ends_the_run(error):
            return
        try:
            recorder = self._training.opened(acts=False)
            if error is not None and recorder is not None:
                # First what cannot be had again.
                self.save_last_state(type(error).__name__)
                self.last_words(error, gave_up).write(recorder)
            self.close()
        except Exception as failure:
            self.failed("closing", failure)

    def last_words(self, error: BaseException, gave_up: object = None) -> LastWords:
        """What can be said of an exception that ends the training; nothing is written."""
        facts = exception.facts(error, self._batch_source.at_work(), self._training.models())
        memory = self._watchers.memory
        found = attempt(self, "watchers", memory.last_words, error) if memory is not None else None
        found = found or []
        # Out of memory is the memory watcher's to explain.
        ran_out = any(isinstance(record, MemoryRanOut) for record in found)
        facts = facts.replace(
            explained="memory" if ran_out else "",
            steps=self._position.steps,
            gave_up=None if gave_up is None else str(gave_up),
        )
        following = self._training.iteration + 1
        others = [(following, record) for record in found]
        return LastWords.of(error, self._position.steps, facts, others)

    @fail_open("last state")
    def save_last_state(self, why: str, at: FrameType | None = None) -> None:
        """The run ends early: save the state after its last complete step, once.

        ``at`` is where the loop asks for its next batch, if it does: it can be resumed from there.
        """
        step = self._training.iteration
        self._script.tell_hopeless(step)
        if at is not None:
            resume = self._script.take(step, self._position.steps, at)
            self._last_state.save(Moment(why, resume=resume))
        elif not self._writer.waiting or self._recovery.snapshots.count:
            doubt = ""
            if self._fast.in_step or self._in_step():
                doubt = f"step {step} was cut short inside optimizer.step"
            elif "guard" in self.off:
                doubt = "without the guard it is not known whether the last step is complete"
            self._fast.close()
            statistics = self._training.registry.buffers.statistics()
            self._last_state.save(Moment(why, doubt, self._batch_source.rng, statistics))

    def close(self) -> None:
        """End of the process: wait for pending rows and write the final record."""
        self._fast.close()
        self._last_state.close()
        self._investigation.close()
        attempt(self, "memory", self._training.memory.tell, self._training.iteration)
        attempt(self, "watchers", self._watchers.close)
        self._recovery.close()
        self._writer.close(self._window.losses.passes)

    # ------------------------------------------------------------------ by a signal

    def asks_soon(self) -> bool | None:
        """Whether the loop is in a step after which its script can be resumed."""
        return self._position.asks_soon() and self._script.comes_soon(sys._getframe())

    @fail_open("resume")
    def waits_at(self, frame: FrameType | None) -> FrameType | None:
        """Where the loop waits for a loader worker, if it can be resumed from there.

        Whatever else happens on the way to a batch may have changed something.
        """
        place = self._script.waits_for_worker(frame)
        return place if place is not None and self._position.asks_now() else None

    def ends_together(self, why: str) -> bool:
        """Ask all ranks to save and end after one step; False where that is not possible.

        Called in a thread, as those below: the clock of the loop must not be touched.
        """
        with contextlib.suppress(Exception):
            all_ranks = self._recovery.all_ranks
            return all_ranks.begin() and all_ranks.ask(END, {"signal": why})
        return False

    def left_alone(self) -> str:
        """Why the other ranks will not do so; empty while they may."""
        return self._recovery.all_ranks.why_over

    def not_saved(self, why: str) -> None:
        """A signal ends the process, whose training thread is somewhere in native code."""
        reason = self.left_alone() or "there was no step that all ranks came to"
        with contextlib.suppress(Exception):
            self._last_state.not_saved(why, f"{reason}; this one waits in a collective")
