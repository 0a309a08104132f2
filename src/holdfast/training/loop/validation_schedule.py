"""Validation within a run: when it is due, which was the best, what is kept of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from ...records.trainer import Validated
from ...watching.watch import Watch
from .. import distributed
from ..device import Place
from ..schedules import Schedule
from .progress import Progress
from .stopping import BestSoFar
from .validation import ValidationSettings
from .validation_spikes import ValidationSpikes

BEST = "validation"
"""The metric under which the best checkpoint is kept."""
# Seconds between two checkpoints that nothing but the end of an epoch asks for.
_APART = 30.0


class ValidationSchedule:
    """Validates when it is due, and keeps what came of it.

    Args:
        settings: when.
        validate: makes the numbers; None: there is no validation set.
        metric: the number that decides which was the best.
        place: this rank.
        headline: the numbers that people are told; all by default.
    """

    def __init__(
        self,
        settings: ValidationSettings,
        validate: Callable[[], dict[str, float]] | None,
        best_before: BestSoFar,
        metric: str,
        place: Place,
        *,
        watch: Watch,
        schedule: Schedule,
        progress: Progress,
        pace: Callable[[], dict[str, float]] = dict,
        headline: tuple[str, ...] = (),
        after_each: Iterable[Callable[[int, Mapping[str, float]], None]] = (),
        after_best: Callable[[int], None] | None = None,
    ) -> None:
        self._settings, self._validate, self._best_so_far = settings, validate, best_before
        self._metric, self._place, self._headline = metric, place, headline
        self._watch, self._schedule, self._progress, self._pace = watch, schedule, progress, pace
        self._after_each, self._after_best = tuple(after_each), after_best
        self._step = 0
        self._spikes = ValidationSpikes(settings, best_before, watch, progress.say)
        self._fresh = self._best = False
        self._saved = time.monotonic()
        self.latest: dict[str, float] = {}

    def after_step(self, step: int, *, final: bool) -> None:
        """A step amid an epoch is over; ``final`` says that there will be no other."""
        if final or self._due_by_steps(step):
            self._examine(step)
            self.keep(final=final)

    def epoch_ends(self, epoch: int, step: int) -> None:
        """The data is through; ``keep`` is to follow."""
        every = self._settings.epochs
        if (every and (epoch + 1) % every == 0) or self._due_by_steps(step):
            self._examine(step)

    def _due_by_steps(self, step: int) -> bool:
        return bool(self._settings.steps) and step % self._settings.steps == 0

    def keep(self, *, final: bool) -> None:
        """Save the run if that is due; the last thing between two steps or two epochs.

        What has just been validated as the best is always saved, anything else only now and
        then: an epoch may take less time than a checkpoint.
        """
        fresh, best, self._fresh, self._best = self._fresh, self._best, False, False
        late = not (best or final) and time.monotonic() - self._saved > _APART
        # Ranks must save the same steps, and their clocks differ.
        if best or final or distributed.anyone(late, self._place):
            if self._place.world > 1:
                self._watch.await_saved()  # a rank that drops what it has not begun is alone
            best_so_far = {BEST: self.latest[self._metric]} if fresh else {}
            self._watch.save(best_so_far | self._pace())
            self._saved = time.monotonic()
        if best and self._after_best is not None:
            # The best state is saved by now, whatever becomes of this.
            self._after_best(self._step)

    @property
    def why_stop(self) -> str:
        """Why it is time to stop; empty while it is not."""
        return self._best_so_far.why_stop

    def _examine(self, step: int) -> None:
        if self._validate is None:
            return
        self.latest = self._validate()
        self._fresh, self._step = True, step
        best = self._best = self._best_so_far.validated(step, self.latest)
        value = self.latest[self._metric]
        # A plateau is one of what gets smaller when the model gets better.
        self._schedule.validated(value if self._best_so_far.less_is_better else -value)
        validated = Validated(values=self.latest, best=best)
        self._watch.note(validated.kind, validated.to_dict())
        for after_each in self._after_each:
            after_each(step, self.latest)
        self._progress.validated(step, reported(self.latest, self._headline), best)
        if self._spikes.look(step, self._metric, value):
            self._fresh = False  # the state there is now was not what was validated


def reported(values: Mapping[str, float], headline: tuple[str, ...]) -> Mapping[str, float]:
    """The numbers of a validation that people are told; all where none of them is named."""
    return {name: values[name] for name in headline if name in values} or values
