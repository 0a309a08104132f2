"""Watches the memory of a run: signs on every step, looks on few, exams when something grows."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from torch import Tensor

from ..config import Settings
from ..exams._graphs import now, reach
from ..exams._place import from_here
from ..exams.census import Held, Timeline, named_graphs
from ..exams.training import Training
from ..probes.step_record import StepRecord
from . import last_words, needs
from .cycles import Cycles, holds_its_output
from .evaluation import Evaluation
from .growth_watch import GrowthWatch
from .heap import Heap
from .sentinels import Sentinels
from .workers import Workers

# Steps between two judgements of the signs, and steps a graph may stay alive without a question.
_EVERY = 8
_OLD = 10
# Bytes per step that are a sign of growth: over a short stretch and over a long one.
_STEEP = 192 << 10
_SLOW = 24 << 10
# Steps whose losses are asked whether they lead into the step before: an error may end them soon.
_EARLY = 3
# Steps in which the heap is looked at more often.
_YOUNG = 64
# Backward passes without a step before they are taken for steps.
_WITHOUT = 8


class MemoryWatch:
    """Notices, orders exams and writes down what they found."""

    def __init__(self, settings: Settings, training: Training) -> None:
        self._settings, self._training = settings, training
        self._begin()
        self.evaluation = Evaluation(lambda facts: self._found("MEM004", facts))
        self._workers = Workers(
            lambda facts: self._found("MEM006", facts), fetch=settings.lookouts.samples
        )
        self._epoch = 0
        self._iterator = 0
        self._step = -1
        self._opt = -1
        self._ordered = 0
        self._told = 0
        self._first = ""
        self._passes = 0
        self._beats = False
        self._names: dict[int, Held] = {}
        self._carrier: tuple[Held, int] | None = None
        self._kept_for = 0

    def _begin(self) -> None:
        self._timeline = Timeline()
        self._sentinels = Sentinels()
        self._cycles = Cycles()
        self._heap = Heap()
        self._growth = GrowthWatch(self._timeline, self._found, lambda: self._epoch)

    def backward(self, loss: object) -> None:
        """``backward`` is about to be called on ``loss``."""
        self.evaluation.backward(loss)
        self._sentinels.backward(loss, self._step + 1)
        if not isinstance(loss, Tensor):
            return
        if self._growth.asks_backward:
            self._growth.backward(loss)
        if self._names:
            self._look_back(loss)
        if self._kept_for:
            self._look_for_cycle(loss)
        if self._opt < 0:
            self._passes += 1
            if self._passes > _WITHOUT:
                # A loop without an optimizer of torch: its backward passes beat the time.
                self._beats = True
                self._beat(self._passes - _WITHOUT - 1, sys._getframe())

    def creates_graph(self, loss: object, frame: FrameType) -> None:
        """``backward`` is about to be called on ``loss`` with ``create_graph``."""
        self._cycles.backward(loss, self._step + 1, frame)

    def _look_back(self, loss: Tensor) -> None:
        """One of the first losses: does it lead into the step before?"""
        for entry in reach(loss.grad_fn, self._timeline.before(1)).entries:
            if entry in self._names:
                self._carrier = self._names[entry], 1
        self._names = {}

    def _look_for_cycle(self, loss: Tensor) -> None:
        """Graphs are kept: does this one have what would keep it too?"""
        facts = holds_its_output(loss, self._kept_for)
        self._kept_for = 0
        if facts is not None:
            self._found("MEM002", facts)

    def fetched(self, iterator: Any, frame: FrameType) -> None:
        """The loop has its next batch."""
        self.evaluation.fetched(frame)
        self._workers.fetched(iterator, frame)
        if id(iterator) != self._iterator:
            self._iterator = id(iterator)
            try:
                self._epoch = max(self._epoch, len(iterator._index_sampler))
            except (AttributeError, TypeError):
                self._epoch = max(self._epoch, 0)

    def step_ended(self, record: StepRecord, frame: FrameType) -> None:
        """A step is over."""
        step = record.step
        # One optimizer beats the time; another takes over only when it has stopped.
        other = record.opt != self._opt and step < self._step + 4
        if self._opt >= 0 and (step == self._step or other):
            return
        if self._beats:
            self._beats = False
            self._begin()
        self._opt = record.opt
        if step < _EARLY:
            self._names = named_graphs(frame)
        self._beat(step, frame)

    def _beat(self, step: int, frame: FrameType) -> None:
        self._step = step
        self._timeline.ends(step, now())
        # Asking the C library takes as long as everything else here together.
        if step % (2 if step < _YOUNG else 4) == 0:
            self._heap.sample(step)
        if step % _EVERY == 0 and step:
            self._judge_signs(step)
        self._growth.tick(step, frame)
        self.evaluation.step_ended(step, frame)

    @property
    def busy(self) -> bool:
        """Whether a line is being looked for."""
        return self._growth.busy or self.evaluation.open

    def pauses(self) -> None:
        """Steps have gone by unseen."""
        self.evaluation.pauses()

    def close(self) -> None:
        """The process ends."""
        died = last_words.error()
        if last_words.second_time(died) and self._carrier is not None:
            self._found("MEM003", last_words.carried(*self._carrier))
        self._growth.close()
        self.evaluation.close()
        if died is not None and last_words.ran_out(died):
            facts = needs.arithmetic(died, self._training) | last_words.place(died.__traceback__)
            if self._told:
                facts["consequence"] = self._first
            self._found("MEM008", facts)

    @property
    def ran_out(self) -> bool:
        """Whether the script is ending for want of memory."""
        return last_words.ran_out(last_words.error())

    def evaluates(self, frame: FrameType) -> None:
        """``eval()`` was called on a module."""
        self.evaluation.begins(frame)

    def trains(self) -> None:
        """``train()`` was called while an evaluation was going on."""
        self.evaluation.ends()

    def differentiates(self) -> None:
        """``torch.autograd.grad`` is called."""
        self.evaluation.differentiates()

    def _judge_signs(self, step: int) -> None:
        if self._told:
            return  # the signs are explained, and looks go on by themselves
        if (facts := self._cycles.kept(step)) is not None:
            self._found("MEM002", facts)
            return
        oldest = self._sentinels.oldest()
        old = oldest is not None and step - oldest >= _OLD
        grows = self._heap.slope() > _STEEP or self._heap.slope(32) > _SLOW
        if old or grows or self._heap.device_slope() > _SLOW:
            self._ordered += 1
            # Signs that were followed in vain are followed less and less often.
            if self._ordered & (self._ordered - 1) == 0:
                self._growth.order(step, certain=old)
                self._kept_for = step - oldest if old and oldest is not None else 0

    def _found(self, code: str, facts: dict[str, Any]) -> None:
        self._told += code != "MEM008"
        self._first = self._first or code
        made = self.evaluation.built(facts.pop("graph", None))
        if code in ("MEM001", "MEM002") and (made or self._in_evaluation(facts)):
            facts = {"consequence": "MEM004", **facts}
        facts = {"fault": code, "heap_slope": self._heap.slope(), **facts}
        self._training.record("memory", facts)

    def _in_evaluation(self, facts: dict[str, Any]) -> bool:
        places = {(from_here(file), function) for file, function in self.evaluation.places}
        return (facts.get("file"), facts.get("function")) in places
