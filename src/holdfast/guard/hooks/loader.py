"""A loader is made, begins, draws and hands out batches; some of them are handed out again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from ...actions import replace_sample
from ...probes.batches import HELD, Batch, LoaderBatches
from ...probes.ranks import ranks
from ...records.steps import SkippedBatch
from ..engine_state import EngineState
from ..fail_open import EnginePart, attempt, fail_open


class LoaderHooks(EnginePart):
    """Hooks of a ``DataLoader`` and of its iterators.

    Args:
        state: of the engine.
    """

    def __init__(self, state: EngineState) -> None:
        super().__init__(state)
        self._replays = state.settings.guard.replay
        self._training, self._writer, self._recovery = state.training, state.writer, state.recovery
        self._script = state.recovery.checkpoints.script
        self._bad_batches = state.training.bad_batches
        self._last_state, self._position = state.last_state, state.position
        self._batch_source, self._window, self._fast = state.batch_source, state.window, state.fast
        self._investigation, self._watchers = state.investigation, state.watchers

    # ------------------------------------------------------------------ a pass begins

    @fail_open("origins")
    def loader_made(self, loader: Any) -> None:
        """A loader exists."""
        self._training.origins.made(loader, sys._getframe())

    def pass_begins(self, loader: Any, original: Callable[[Any], Any]) -> Any:
        """A loop over a loader begins: its iterator, or one that hands out nothing any more."""
        script = self._script
        if not script.on or script.busy or "resume" in self.off:
            return original(loader)
        frame = sys._getframe(1)
        if script.pending:
            instead = script.instead(loader, frame)
            if instead is not None:
                return instead
        started = attempt(self, "resume", script.begins, loader, self._position.steps, frame)
        iterator = original(loader)
        if started is not None:
            steps = self._position.steps
            attempt(self, "resume", script.began, loader, iterator, started, steps)
        return iterator

    @fail_open("unreadable samples")
    def loader_begins(self, loader: Any, trains: bool = False) -> None:
        """A loop over a loader is about to begin; ``trains``: it is known to train."""
        self._training.origins.pass_begins(loader)
        self._bad_batches.loader_begins(loader, trains=trains)

    @fail_open("unreadable samples")
    def loader_began(self, iterator: Any) -> None:
        """Its iterator is there, with its workers; None where that failed."""
        self._training.origins.pass_began(iterator)
        self._bad_batches.loader_began(iterator)

    @fail_open("unreadable samples")
    def fetcher(self, made: Any) -> Any:
        """What is to make batches in place of what torch has made for it, often the same."""
        return replace_sample.fetcher(made)

    # ------------------------------------------------------------------ every batch

    def drew(self, iterator: Any, indices: Any) -> tuple[Any] | None:
        """A loader drew the indices of a batch that it will hand out later.

        Without quarantined samples it gives what is left of them, as a tuple of one; in that None
        where nothing is. Mostly it takes them as they are and gives None.
        """
        kept = None
        if self._bad_batches.quarantine.skips:
            kept = self._without_poisoned(iterator, indices)
            indices = indices if kept is None else kept[0]
        if "loader probe" not in self.off and indices is not None:
            # Without the wrapper, which takes as long as what it calls.
            try:
                loader_batches = getattr(iterator, LoaderBatches.ATTRIBUTE, None)
                if loader_batches is None:
                    loader_batches = LoaderBatches.of(iterator, self._batch_source.loader_batches)
                # A sampler may fill the same list again. What is in it can wait.
                noted = indices[:] if type(indices) is list else indices
                loader_batches.drawn[getattr(iterator, "_send_idx", 0)] = noted
            except Exception as error:
                self.failed("loader probe", error)
        return kept

    @fail_open("quarantine")
    def _without_poisoned(self, iterator: Any, indices: Any) -> tuple[Any] | None:
        """What is left of a draw, as a tuple of one; None to take it as it is."""
        quarantine = self._bad_batches.quarantine
        kept = quarantine.kept(iterator, indices, equal=ranks() > 1)
        while quarantine.skipped:
            samples = quarantine.skipped.pop(0)
            self._training.record(SkippedBatch(samples=tuple(samples)))
        return (kept,)

    def fetch_begins(self, iterator: Any) -> tuple[Any] | None:
        """The loop asks for the next batch.

        Mostly None; a tuple of one: a batch to feed again in its place, for an investigation.
        """
        self._fetch_begins(iterator)
        return self._hands_out_again(iterator)

    @fail_open("loader probe")
    def _fetch_begins(self, iterator: Any) -> None:
        """The batches of the last step are no longer ours to hold."""
        if self.phases.idle:
            self.phases.last = perf_counter()
        else:
            self.phases.mark("other", perf_counter())
        recovery, script = self._recovery, self._script
        rests = recovery.rests(self._training.iteration)
        again: Sequence[Batch] = ()
        if not rests and recovery.suspects:
            self._fast.close()
            again = self._last_batches(iterator)
        if not self._writer.readback.flying and not again and not self._fast.waits:
            self._batch_source.let_go()
        if script.on and not script.asks_again(iterator, self._position.steps):
            about = iterator, self._position.steps, sys._getframe(1)
            attempt(self, "resume", script.asks, *about)
        signals = self._last_state.signals
        # Of several processes all end after the same step.
        signalled = signals is not None and signals.pending != 0 and signals.alone
        if signalled and self._position.asks_now():
            self._last_state.end_here(sys._getframe(1))
        if not rests and self._position.between and recovery.due(self._training.iteration):
            self._fast.close()
            # Between a batch and the same batch again no script can be resumed.
            position = self._position
            at = None if position.replaying or position.gives_again else sys._getframe(1)
            where = self._training.iteration, True, again, at, position.steps
            attempt(self, "recovery", recovery.boundary, *where)
        if hasattr(iterator, "_rcvd_idx"):
            LoaderBatches.of(iterator, self._batch_source.loader_batches).expects(iterator)

    def _last_batches(self, iterator: Any) -> Sequence[Batch]:
        """The batches of the last step, where the loop can be given them again; mostly all."""
        loader_batches = self._batch_source.loader_batches
        if (
            loader_batches is None
            or loader_batches.ahead
            or LoaderBatches.of(iterator, loader_batches) is not loader_batches
        ):
            return ()  # fetched ahead, or a validation: it would not be used in the next step
        idle = self._investigation.idle and not self._investigation.replaying
        held = all(batch.content is not None for batch in loader_batches.used)
        if not (idle and held and self._replays):
            return ()
        self._writer.await_rows()  # their loss, once in a rollback
        return tuple(loader_batches.used)

    def _hands_out_again(self, iterator: Any) -> tuple[Any] | None:
        """A bad batch to feed again in place of the next one, for an investigation; mostly None."""
        trial, lost, looked_into = self._recovery.replay, self._training.memory, self._investigation
        if trial.again or lost.again or looked_into.again:
            return self._bad_batch(iterator)
        trial.running = lost.held = looked_into.replaying = False
        return None

    @fail_open("investigation")
    def _bad_batch(self, iterator: Any) -> tuple[Any] | None:
        again = self._recovery.replay.next_batch()
        if again is None:
            again = self._training.memory.next_batch(iterator)
        if again is None:
            again = self._investigation.next_batch(iterator)
        if again is None or self._batch_source.loader_batches is None:
            return None
        self._batch_source.hand_out_again(*again)
        return (again[1],)

    @fail_open("loader probe")
    def fetched(self, iterator: Any, content: object, passes: int | None = None) -> None:
        """The loop has its next batch: a skipped step goes back to this RNG state.

        ``passes``: how many backward passes belong to the step already, where that is known.
        """
        self.phases.mark("data_wait", perf_counter())
        if passes is None:
            passes = self._window.losses.passes
        looks = self._investigation
        # A step decided on a device is not repeated with the same RNG state, except in an exam.
        if not self.phases.on_device or looks.alert or not looks.idle:
            self._batch_source.keep_rng(passes)
        loader_batches = getattr(iterator, LoaderBatches.ATTRIBUTE, None)
        if loader_batches is None or loader_batches is not self._batch_source.loader_batches:
            loader_batches = self._batch_source.comes_from(iterator, looks)
        # A loop that fetches without training (validation) makes us hold two batches, no more.
        loader_batches.handed_out(iterator, content, min(HELD, 2 + passes))
        if self._watchers.on:
            attempt(self, "watchers", self._watchers.fetched, iterator, sys._getframe())
        reads = self._bad_batches.feeding
        if reads is not None and reads.log.grown:
            attempt(self, "unreadable samples", self._write_unreadable)
        swallowed, recorder = self._watchers.swallowed, self._training.recorder
        if swallowed.batches and recorder is not None:
            # A batch without a step since the last one, of a validation perhaps: it goes on.
            recorder.ring.heartbeat()
        swallowed.batches += 1
        if swallowed.batches >= swallowed.due:
            attempt(self, "swallowed errors", swallowed.look, sys._getframe())

    def _write_unreadable(self) -> None:
        training, recorder = self._training, self._training.opened()
        if recorder is not None:
            self._bad_batches.write_unreadable(recorder, training.iteration + 1)

    @fail_open("loader probe")
    def fetch_fails(self, iterator: Any) -> None:
        """There was no next batch."""
        if self._script.on:
            steps = self._position.steps
            attempt(self, "resume", self._script.ends, iterator, steps, sys._getframe(1))
        self._recovery.epoch_begins()
        loader_batches = LoaderBatches.of(iterator, self._batch_source.loader_batches)
        loader_batches.ran_out()
        if loader_batches is self._batch_source.loader_batches and ranks() > 1:
            self._training.pass_ends(loader_batches)
