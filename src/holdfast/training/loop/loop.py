"""The loop itself: epochs, micro-batches, steps, and what happens between two steps."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from ...records.trainer import EpochBegins
from .. import distributed, parallel
from .interrupts import Interrupts
from .micro_batches import MicroBatches
from .parts import LoopParts

# Ranks ask each other this often whether one of them was told to stop or a checkpoint is due.
_AGREE_EVERY = 16


class Counter:
    """Optimizer steps of a run; part of every checkpoint."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, int]:
        """Plain numbers."""
        return {"step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.step = int(state["step"])


class Loop:
    """Goes through the data until there is a reason to stop."""

    def __init__(self, parts: LoopParts, counter: Counter) -> None:
        self._parts = parts
        self._micro_batches = MicroBatches(parts)
        self._counter = counter
        self._saved_at = time.monotonic()
        self._due = False

    @property
    def step(self) -> int:
        """Optimizer steps so far, those before a resume included."""
        return self._counter.step

    def run(self, interrupts: Interrupts) -> str:
        """Train; returns why it ended."""
        parts, settings = self._parts, self._parts.settings
        epochs = settings.epochs if settings.epochs is not None else 1 << 30
        why = self._reached() or parts.examination.why_stop
        if why:
            return why
        for epoch in parts.watch.epochs(epochs):
            parts.step_reporter.epoch_begins(epoch)
            begins = EpochBegins(epoch=epoch + 1)
            parts.watch.note(begins.kind, begins.to_dict())
            for last in self._steps(epoch):
                why = self._after_step(last, interrupts)
                if why:
                    return why
            with parts.step_reporter.aside():
                parts.examination.epoch_ends(epoch, self.step)
            norms = parts.health.epoch_ends(epoch)
            parts.step_reporter.epoch_ends(epoch, self.step, norms)
            parts.epoch_loaders.epoch_ends(
                parts.step_reporter.wait_share, parts.step_reporter.wait_seconds
            )
            why = parts.examination.why_stop
            if epoch + 1 == settings.epochs:
                why = why or f"{settings.epochs} epochs are done"
            with parts.step_reporter.aside():
                parts.examination.keep(final=bool(why))
            if why:
                return why
        return f"{settings.epochs} epochs are done"

    def _steps(self, epoch: int) -> Iterator[bool]:
        """One pass over the data; yields after every optimizer step, True for its last."""
        parts = self._parts
        loader, length = parts.epoch_loaders.epoch(epoch), parts.epoch_loaders.length
        for batch in parts.step_reporter.waiting(parts.watch(loader)):
            if parts.watch.replaying:
                self._replay(batch)
                continue
            # Where the length is not known a window may turn out to be the last after the fact.
            last = length is not None and parts.watch.batches >= length
            inner = length is not None and not last
            self._micro_batches.take(batch, step=self.step, inner=inner)
            if parts.window.full or last:
                self._optimizer_step(last=last)
                yield last
        if parts.window.passes:
            self._optimizer_step(last=True)
            yield True

    def _replay(self, batch: Any) -> None:
        """A poisoned window once more, for a rerun: the guard skips its step."""
        parts = self._parts
        self._micro_batches.replay(batch, step=self.step)
        if parts.watch.last_replay:
            parts.watch.step()
            parts.window.drop()

    def _optimizer_step(self, *, last: bool) -> None:
        parts = self._parts
        parallel.complete(parts.net, parts.place, late=parts.settings.reduce_late)
        parts.window.settle(parts.model.parameters(), last=last)
        self._micro_batches.window_ends()
        parts.watch.step()
        parts.schedule.step()
        if parts.average is not None:
            parts.average.update()
        self._counter.step += 1
        if parts.stepped is not None:
            if parts.stepped(self.step):
                parts.watch.new_task()
            parts.watch.settled()
        parts.profiler.step()

    def _after_step(self, last: bool, interrupts: Interrupts) -> str:
        """Tell, validate, save; why the run is to end, empty as a rule.

        What ends it here is saved here: the pass over the data is still open, so that a resumed
        run goes on with its next batch.
        """
        parts = self._parts
        parts.step_reporter.stepped(self.step)
        parts.health.stepped(self.step, parts.step_reporter.numbers)
        if self._agreed(interrupts):
            parts.watch.save()
            return f"it was told to stop ({self._name(interrupts)})"
        reached = self._reached()
        if reached or not last:
            with parts.step_reporter.aside():
                parts.examination.after_step(self.step, final=bool(reached))
        return reached or ("" if last else parts.examination.why_stop)

    def _reached(self) -> str:
        steps = self._parts.settings.steps
        return f"{steps} steps are done" if steps is not None and self.step >= steps else ""

    def _agreed(self, interrupts: Interrupts) -> bool:
        place = self._parts.place
        if place.world == 1:
            return interrupts.asked is not None
        keep = self._parts.settings.holdfast.checkpoint
        agree = self.step % _AGREE_EVERY == 0
        if keep.minutes and agree:
            late = time.monotonic() - self._saved_at > 60 * keep.minutes
            self._due = self._due or distributed.anyone(late, place)
        self._due = self._due or bool(keep.steps and self.step % keep.steps == 0)
        # Ranks save the same steps: where one is still writing, all of them wait for another.
        if self._due and not distributed.anyone(not self._parts.watch.saved, place):
            self._due, self._saved_at = False, time.monotonic()
            self._parts.watch.save()
        return agree and distributed.anyone(interrupts.asked is not None, place)

    @staticmethod
    def _name(interrupts: Interrupts) -> str:
        return interrupts.asked.name if interrupts.asked is not None else "on another rank"
