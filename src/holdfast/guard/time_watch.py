"""Watches the time of a run: waits, steps that become slower, stalls, reads, recompilations.

Every step is timed. What stands out orders an exam of a few steps (``exams/line_times``,
``loader_times``, ``reads``); what that finds is judged in ``time_causes`` and becomes an Event.
"""

from __future__ import annotations

import math
import sys
import weakref
from itertools import pairwise
from time import perf_counter, thread_time
from types import FrameType
from typing import Any

from ..config import Settings
from ..exams import loader_times, reads, worker_samples
from ..exams._profiles import Line, Profile, Turn, line_of, turn_of
from ..exams.line_times import LineTimes
from ..exams.recompiles import Recompiles
from ..exams.training import Training
from ..probes.batches import LoaderLedger
from ..probes.ranks import ranks
from ..probes.step_record import StepRecord
from . import input_causes, slow_causes
from . import time_causes as causes
from .step_times import StepTimes
from .time_notes import TimeNotes

# Looks at the lines without a symptom: with the first block of steps, after these many, and then
# four times as many.
_LOOK = 24
_MORE = 4
# Steps under a trace: at least, until so many seconds, at most; and on the hunt for rare ones.
_STEPS = 3
_SECONDS = 0.012
_MOST = 8
_HUNT = 48
_EXAM_OF = {"input_bound": "waits", "stall": "stall", "host_reads": "reads", "slow_down": "slow"}
# Exams of one kind in a run.
_EXAMS = 16
# What exams may add to a run: seconds, and a share of its time.
_SPENT = 0.06
_SHARE = 0.01
# Seconds of ours in a step from which on it is not like the others.
_OURS = 0.004
# A symptom: share of waiting, times slower, share of stalls.
_WAITING = 0.25
_WAITED = 0.08
_SLOWER = 1.35
_SLOWER_BY = 0.0004
_STALLED = 0.15
_STALLS = 3
_WITHIN = 100


class TimeWatch:
    """Notices, orders exams and writes down what they found."""

    def __init__(self, settings: Settings, training: Training) -> None:
        self._on = settings.guard.explain
        self._may_fetch = settings.lookouts.samples
        self._training = training
        self._times = StepTimes()
        self._lines = LineTimes()
        self._recompiles = Recompiles()
        self._last = 0.0
        self._step = -1
        self._iterator = 0
        self._source: weakref.ref[Any] | None = None
        self._trained_on = 0
        self._indices, self._asks = list[Any](), ("", 0)
        self._fetches = self._fed = self._unfed = self._begun = 0
        self._epochs, self._busy, self._opts = set[int](), 0.0, 0
        self._passing = self._traced = False  # traced by somebody else, and all is slow
        self._home: tuple[str, int] | None = None
        self._taken_at: list[tuple[str, int]] = []
        self._nodes, self._retries, self._nested = 0, 0, (0, "")
        self._turn: Turn | None = None
        self._ordered = self._exam = ""
        self._walls, self._waits = list[float](), list[float]()
        self._orders, self._again = dict[str, int](), dict[str, int]()
        self._foreseen, self._next_look = 0, _LOOK
        self._reference: slow_causes.Reference | None = None
        self._profile: Profile | None = None
        self._ledger: reads.Ledger | None = None
        self._notes = TimeNotes(training)

    # ------------------------------------------------------------------ moments

    def backward(self, loss: object) -> None:
        """``backward`` is about to be called on ``loss``."""
        if self._exam in ("reference", "slow") and not self._nodes:
            self._nodes = slow_causes.graph_size(loss)

    def fetched(self, iterator: Any, frame: FrameType) -> None:
        """The loop has its next batch."""
        self._fetches += 1
        if self._exam in ("reference", "slow"):
            self._nested = max(self._nested, loader_times.nesting(iterator))
        if self._exam == "loader":
            self._asks = line_of(frame)
            latest = LoaderLedger.of(iterator).at_work()[-1:]
            self._indices = [i for batch in latest for i in batch.indices or ()]
        if id(iterator) != self._iterator:
            self._iterator = id(iterator)
            try:
                self._source = weakref.ref(iterator)
            except TypeError:
                self._source = None

    def step_ended(self, record: StepRecord, frame: FrameType) -> None:
        """A step is over."""
        if not self._on:
            return
        now = perf_counter()
        step, row = record.step, record.row
        # One turn of the loop may take several steps: with other optimizers, or at other lines.
        self._passing = step == self._step
        if not self._passing and self._home is not None:
            self._passing = line_of(frame) != self._home
        if self._passing:
            return
        wall, waited = now - self._last, row["data_wait"]
        waited = waited if waited == waited else 0.0
        # A step in which we did a lot says nothing, nor one for which workers are started.
        begins = self._traced or row["guard"] > max(_OURS, 0.3 * wall)
        if self._iterator != self._trained_on:
            # Validation fetches too, in a loop that may make its batches itself; and some loops
            # ask a new iterator for each batch.
            self._begun += 1
            epoch = self._fed > self._unfed and self._begun < 0.6 * self._fed
            self._epochs |= {step} if epoch else set()
            starts = epoch and loader_times.workers_of(self._source) > 0
            begins = begins or starts or self._begun == 1
            self._trained_on = self._iterator
        if self._fetches:
            self._fed += 1
        else:
            self._unfed += 1
        self._fetches = 0
        busy, self._busy = self._busy, thread_time()
        first, self._step = self._step < 0, step
        if not first:
            self._took(record, frame, wall, self._busy - busy, waited, begins)

    def goes_on(self, frame: FrameType) -> None:
        """All that is ours is done after a step: the clock of the loop runs again."""
        if self._passing:
            return
        if self._ordered:
            exam, self._ordered = self._ordered, ""
            self._turn = turn_of(frame)
            if self._lines.begin(frame):
                self._exam = exam
        self._traced = not self._exam and sys.gettrace() is not None
        self._last = perf_counter()

    @property
    def busy(self) -> bool:
        """Whether something is being looked into, or about to be."""
        at_work = self._exam or self._ordered or self._step <= self._foreseen
        return bool(at_work) or self._ledger is not None

    def pauses(self) -> None:
        """Steps have gone by unseen: the next one is the first again."""
        self._step = -1

    def close(self) -> None:
        """The process ends."""
        self._lines.stop()
        reads.end()
        self._notes.settle(self._times.seconds)

    # ------------------------------------------------------------------ every step

    def _took(
        self,
        record: StepRecord,
        frame: FrameType,
        wall: float,
        busy: float,
        waited: float,
        begins: bool,
    ) -> None:
        if record.opt != self._opts:
            self._new_stage(record.opt)
        if not self._recompiles.attached and "torch._dynamo" in sys.modules:
            self._recompiles.attach()
        if self._recompiles.news:
            self._recompiled()
            return  # a step with a compilation in it says nothing about the others
        if self._exam:
            self._examined(record, frame, wall, waited, begins)
            return
        if self._ledger is not None:
            self._ledger.steps += 1
        if begins:
            return
        full = self._times.add(record.step, wall, busy, waited)
        if self._ledger is not None:
            self._reads_taken(record)
        elif self._foreseen and self._foreseen == record.step:
            self._order("stall", frame)
        elif full:
            self._consider(record, frame)

    def _new_stage(self, opt: int) -> None:
        """Another optimizer is at work: what was usual is no longer."""
        self._opts = opt
        self._times = StepTimes()
        self._reference = None
        self._lines.stop()
        self._ordered = self._exam = ""
        self._home, self._foreseen = None, 0

    def _consider(self, record: StepRecord, frame: FrameType) -> None:
        """Eight more steps are known: is there anything to look into?"""
        times = self._times
        self._notes.settle(self._times.seconds)
        waits = times.share_waited() >= _WAITING and times.waited >= _WAITED
        if waits and self._fed > self._unfed and self._may("waits"):
            self._order("waits", frame)
            return
        if self._reference is None:
            self._order("reference", frame)
            return
        if times.slower(_SLOWER, _SLOWER_BY) and self._may("slow"):
            self._order("slow", frame)
            return
        stalls = times.stalled(_WITHIN)
        if times.come_back(stalls, _STALLS) and self._may("stall"):
            span = record.step - stalls[0].step + 1
            lost = sum(stall.excess for stall in stalls)
            if lost >= _STALLED * (lost + span * times.usual):
                self._hunt(record, frame)
                return
        if times.count >= self._next_look:
            self._next_look = max(self._next_look, times.count) * _MORE
            self._order("look", frame)

    def _may(self, exam: str) -> bool:
        """Exams that found nothing come again, less and less often."""
        asked = self._orders.get(exam, 0)
        # Two for each symptom; more as long as all together cost the run little.
        if asked >= 2 and self._lines.overhead > _SPENT + _SHARE * self._times.seconds:
            return False
        return asked < _EXAMS and self._times.count >= self._again.get(exam, 0)

    def _order(self, exam: str, frame: FrameType) -> None:
        asked = self._orders[exam] = self._orders.get(exam, 0) + 1
        self._again[exam] = self._times.count + 8 * 2 ** min(asked, 4)
        self._walls, self._waits, self._taken_at = [], [], []
        self._nodes, self._retries, self._nested = 0, slow_causes.retries(), (0, "")
        if exam == "waits" and loader_times.workers_of(self._source):
            self._exam = "loader"
        else:
            self._ordered = exam

    def _hunt(self, record: StepRecord, frame: FrameType) -> None:
        """Wait for the next stall where it can be foreseen, else trace until it comes."""
        steps = [stall.step for stall in self._times.stalled(_WITHIN)][-4:]
        gaps = {b - a for a, b in pairwise(steps)}
        if len(gaps) == 1 and (gap := gaps.pop()) > 4:
            ahead = steps[-1]
            while ahead <= record.step + 1:
                ahead += gap
            self._foreseen = ahead - 1
        else:
            self._foreseen = 0
            self._order("stall", frame)

    # ------------------------------------------------------------------ under an exam

    def _examined(
        self, record: StepRecord, frame: FrameType, wall: float, waited: float, begins: bool
    ) -> None:
        if self._exam == "loader":
            self._look_at_loader(record, waited)
            return
        wall = self._lines.step(wall)
        self._taken_at.append(line_of(frame))
        self._walls.append(math.inf if begins else wall)
        self._waits.append(waited)
        if not begins:
            hunted = self._exam == "stall"
            usual = wall if hunted else min(wall, self._times.middle)
            self._times.pass_by(record.step, usual, waited)
        if self._lines.running and not self._enough():
            return
        self._lines.stop(frame)
        exam, self._exam = self._exam, ""
        if self._home is None and len(set(self._taken_at)) > 1:
            # The turn ends where the fewest steps are taken.
            rarest = min(set(self._taken_at), key=self._taken_at.count)
            self._new_stage(record.opt)
            self._home = rarest
            return
        self._judge(exam, record)

    def _enough(self) -> bool:
        """Whether the steps traced so far are enough."""
        walls = [w for w in self._walls if w < math.inf]
        times = self._times
        if self._exam == "stall":
            caught = sum(times.is_stall(w) for w in walls)
            one = bool(caught and self._foreseen and len(walls) > caught)
            return caught >= 2 or one or len(walls) >= _HUNT
        if self._exam == "waits" and self._times.skewed():
            middle = sum(b.waited for b in times.blocks) / (8 * max(1, len(times.blocks)))
            return sum(w > middle for w in self._waits) >= 2 or len(walls) >= _HUNT
        enough = len(walls) >= _STEPS and sum(walls) >= _SECONDS
        return enough or len(walls) >= _MOST or sum(walls) > 1.0

    def _judge(self, exam: str, record: StepRecord) -> None:
        """Make something of the lines."""
        times, batch = self._times, loader_times.batch_of(self._source)
        chosen = [i for i, w in enumerate(self._walls) if w < math.inf]
        passes = 1 + len(self._epochs)
        stalls = [i for i in chosen if times.is_stall(self._walls[i])]
        if exam == "stall":
            if stalls and self._turn is not None and self._reference is not None:
                others = [i for i in chosen if i not in stalls]
                usually = self._lines.profile(others) if others else self._reference.profile
                found = self._lines.profile(stalls)
                self._note(causes.stall(found, usually, self._turn, times, self._epochs))
            return
        if exam == "waits" and self._times.skewed():
            least = max(self._waits) / 2
            chosen = [i for i in chosen if self._waits[i] >= least]
            profile = self._lines.profile(chosen)
            self._note(input_causes.waits(profile, times, batch, rare=True, passes=passes))
            return
        others = [i for i in chosen if i not in stalls]
        # Under a trace all may look like stalls; and an allocator that runs out makes some.
        if len(others) > 1 and slow_causes.retries() == self._retries:
            chosen = others
        profile = self._profile = self._lines.profile(chosen or None, times.middle)
        since, count = (self._retries, len(self._walls)), len(record.positions)
        models, nested = self._training.models(), self._nested
        state = slow_causes.state(profile, count, self._nodes, models, since, nested)
        if exam == "waits":
            self._note(input_causes.waits(profile, times, batch, rare=False, passes=passes))
        elif exam == "slow" and self._reference is not None and len(chosen) >= 2:
            self._note(slow_causes.slow_down(self._reference, state, self._turn, times))
        elif exam == "reference" and len(chosen) >= 2:
            self._reference = state
        if self._turn is not None:
            before, after = causes.own_work(profile, self._turn)
            self._note(input_causes.made_in_loop(before, profile))
            self._note(causes.written_on_every_step(after, profile))
        if exam in ("reference", "look"):
            self._ledger = reads.begin()

    def _look_at_loader(self, record: StepRecord, waited: float) -> None:
        """Workers make the samples: take those of a batch that came late."""
        self._waits.append(waited)
        recent = [w for block in list(self._times.blocks)[-4:] for w in block.waits]
        mean = max(recent) / 2 if (skewed := self._times.skewed()) else sum(recent) / len(recent)
        if waited < mean and len(self._waits) < _HUNT:
            return
        self._exam = ""
        source = self._source() if self._source is not None else None
        if source is None or ranks() > 1:
            return
        pids = [worker.pid for worker in getattr(source, "_workers", ())]
        found = worker_samples.look(pids, self._times.middle, loader_times.batch_of(self._source))
        # Only samples that are made here show which of them is slow.
        if self._may_fetch and (found is None or skewed):
            found = loader_times.look(source, self._indices, self._lines)
        elif found is None and self._orders["waits"] > 1:  # else they may yet tell
            found = input_causes.Unseen(Line(*self._asks, "", "", 0.0, 0.0, (), True))
        workers = len(pids)
        self._note(input_causes.loader(found, self._times, workers, skewed, 1 + len(self._epochs)))

    def _reads_taken(self, record: StepRecord) -> None:
        ledger, self._ledger = self._ledger, None
        reads.end()
        if ledger is not None and self._profile is not None:
            self._note(causes.host_reads(ledger, self._profile, self._turn, self._times.middle))

    def _recompiled(self) -> None:
        for compiled in self._recompiles.look():
            if (data := causes.recompiled(compiled, self._times.seconds)) is not None:
                self._notes.tell("recompile", data)

    def _note(self, found: causes.Found | None) -> None:
        """Take what an exam has found; what is sure needs no other, what is not soon does."""
        if found is None:
            return
        exam = _EXAM_OF[found.kind]
        if self._notes.note(found):
            self._orders[exam] = _EXAMS
        elif found.data.get("what") == "loop" or found.data.get("every") == 1:
            self._next_look = min(self._next_look, self._times.count)
        else:
            self._again[exam] = 0
        self._notes.settle(self._times.seconds)
