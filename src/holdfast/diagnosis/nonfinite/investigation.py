"""Investigation after a bad step: finds the line; each distinct fault gets few of them.

Bad steps in a row of an explained fault are equal as soon as a rerun names no other sample: a state
that carries the NaN on makes every later step bad, and they are counted, not looked into.

Three ways, the first that works:

1. At once, on the host: the frame that called ``backward`` is still there, so its loss is
   computed once more under observation.
2. Through the user's own loop: the bad batch is fed again at the next
   ``next(loader)`` and that iteration is observed (a scheduler's ``step`` is swallowed meanwhile).
3. The next steps are observed, in the hope that it happens again. Where the host learns of bad
   steps too late for the first way, it waits for the verdict on some steps to come, so that the
   next occurrence can be examined at once.

With several ranks the second is left out: one that iterates more often than the others would wait
for them for ever. The first needs a loss that a rank can compute by itself.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Any, Protocol

from torch import Tensor

from ...config import GuardSettings
from ...probes.batches import Batch
from ...probes.ranks import ranks
from ...records import Kind
from ...records.nonfinite import BatchReplay, Cause
from . import provenance
from .observer import FirstBadOp, Observer
from .provenance import StepContext

# Exams for one fault that stays unexplained, and for all faults of a run.
_ATTEMPTS = 6
_EXAMS = 24
# Exams for other samples of a fault that is explained.
_SAMPLES = 16
# Steps that are observed in a row, and steps on which the host waits for the device's verdict.
_OBSERVED = 3
_ALERT = 256

Fault = tuple[str, str]  # "loss" and where backward is called, or "gradient" and the layer


@dataclass(slots=True)
class Incident:
    """A bad step to be explained."""

    fault: Fault
    step: int
    opt: int


@dataclass(slots=True)
class Explained:
    """A fault whose line is known: the samples that were found, and how often was looked."""

    samples: set[Any] = field(default_factory=set[Any])
    reruns: int = 0
    last: int = -1
    """The step that had it last."""
    nothing_new: bool = False
    """The last rerun named no other sample: until a step without it, all are counted as equal."""


class PoisonedTraining(Protocol):
    """What a rerun of a poisoned step asks of the training."""

    @property
    def iteration(self) -> int:
        """The step that was counted last."""
        ...

    def has_bad_gradient(self) -> bool:
        """Whether any gradient on the CPU is non-finite."""
        ...

    def step_context(
        self, batches: Sequence[Batch], rng: Tensor | None, loss: Tensor | None
    ) -> StepContext:
        """The models, their names and the batch."""
        ...

    def record_at(self, step: int, record: Kind) -> None:
        """Write an Event of a step."""
        ...

    def explained(self, step: int, cause: Cause) -> None:
        """Write the cause of a bad step."""
        ...


class Investigation:
    """The reruns of one process.

    Args:
        settings: whether batches may be handed out twice.
        training: what is looked into; takes the causes.
        here: the batches the loop is working on and the random state they came with.
    """

    def __init__(
        self,
        settings: GuardSettings,
        training: PoisonedTraining,
        here: Callable[[], tuple[Sequence[Batch], Tensor | None]],
    ) -> None:
        self.replaying = False
        """The loop has a batch for the second time; its scheduler is held back."""
        self.idle = True
        """Nothing is going on: the common case, asked on every step."""
        self.alert = 0
        """Steps to come on which the host should ask the device at once whether they are bad."""
        self._may_replay = settings.replay
        self._training, self._here = training, here
        self._tried: Counter[Fault] = Counter()
        self._explained: dict[Fault, Explained] = {}
        self._loss: Fault = ("loss", "")
        self._found: Cause | None = None
        self._observer: Observer | None = None
        self._open: Incident | None = None
        self._left = 0
        self._caught = -1
        self.origin = ""
        """File and line of the cause that was found last."""
        self.again: list[tuple[Batch, Any]] = []
        """Batches that the loop will be handed once more."""
        self._iterator: weakref.ref[Any] | None = None
        self._source: weakref.ref[Any] | None = None
        self._root: weakref.ref[Tensor] | None = None

    # ------------------------------------------------------------------ symptoms

    def loss_is_bad(self, frame: FrameType | None) -> None:
        """``backward`` is being called on a loss that the host knows to be bad."""
        self._loss = ("loss", provenance.spot(frame))
        if self._observer is not None or self._found is not None or not self._due(self._loss):
            return
        self.idle = False
        self._examine(self._loss, provenance.of_loss, frame)

    def calls_backward(self, loss: object) -> None:
        """``backward`` is about to be called on ``loss``."""
        self._root = weakref.ref(loss) if isinstance(loss, Tensor) else None

    def backward_begins(self, loss: object) -> None:
        """Under observation: is the loss bad already, or must backward be watched?"""
        if self._observer is None or not isinstance(loss, Tensor):
            return
        first_bad_op = self._observer.responsible(loss)
        if first_bad_op is not None:
            self._note(first_bad_op)
        elif loss.grad_fn is not None:
            self._observer.follow(loss)

    def backward_ends(self, frame: FrameType | None, on_host: bool) -> None:
        """Something is going on and ``backward`` has returned; its caller is still there."""
        self._look_back()
        if not self.alert or not on_host or self._observer is not None or self._found is not None:
            return
        if self._training.has_bad_gradient():
            fault = self._open.fault if self._open else ("gradient", "")
            self._examine(fault, provenance.of_gradients, frame)

    def step_is_bad(
        self,
        frame: FrameType | None,
        opt: int,
        step: int,
        layer: str | None,
        batches: Sequence[Batch],
    ) -> None:
        """A step turned out bad.

        Args:
            frame: the place in the loop, where it is known in time; else None.
            opt: the optimizer.
            step: the step.
            layer: the layer whose gradient is to blame; None when the loss was bad.
            batches: those of the step, as long as their contents are held.
        """
        if step == self._caught:
            return
        fault = self._loss if layer is None else ("gradient", layer)
        incident = Incident(fault, step, opt)
        self.idle = False
        self._look_back()
        if frame is not None and layer is not None and self._found is None and self._due(fault):
            self._examine(fault, provenance.of_gradients, frame)
        if self._found is not None:
            self._tell(incident)
        elif self._observer is None and fault not in self._explained and self._due(fault):
            self._order(incident, batches, known_in_time=frame is not None)

    def caught(self, frame: FrameType | None, opt: int, step: int) -> None:
        """On the alert, and the step that is just being taken is bad."""
        incident = Incident(self._open.fault if self._open else ("gradient", ""), step, opt)
        self.alert = 0
        self._caught = step
        self._examine(incident.fault, provenance.of_gradients, frame)
        if self._found is not None:
            self._tell(incident)
        else:
            self._left = _OBSERVED

    def step_ends(self) -> None:
        """A step is over: stop looking, or begin to."""
        if self._observer is not None:
            self._look_back()
            if not self._observer.stop():
                return
            self._observer = None
            self._left -= 1
            if self._found is not None and self._open is not None:
                self._tell(self._open)
        self._found = None
        if self._left > 0 and not self.again:
            self._watch()
        self.alert = max(0, self.alert - 1)
        self.idle = self._observer is None and not self._left and not self.alert

    # ------------------------------------------------------------------ the loader

    def came_from(self, iterator: Any) -> None:
        """The loader that feeds the loop."""
        if self._iterator is None or self._iterator() is not iterator:
            try:
                self._iterator = weakref.ref(iterator)
            except TypeError:
                self._iterator = None

    @property
    def source(self) -> Any:
        """The iterator of the loader that feeds the loop; None where there is none."""
        return self._iterator() if self._iterator is not None else None

    def next_batch(self, iterator: Any) -> tuple[Batch, Any] | None:
        """The bad batch that the loop gets again instead of its next one."""
        self.replaying = False
        if not self.again:
            return None
        source = self._source() if self._source is not None else None
        if source is not iterator:
            if source is None:
                # Another epoch: wait for the next occurrence instead.
                self.again.clear()
                self._left, self.alert = 0, _ALERT
            return None
        if self._observer is None:
            self._watch()
        self.replaying = True
        return self.again.pop(0)

    @property
    def more_again(self) -> bool:
        """Whether another batch will be handed out for the second time."""
        return bool(self.again)

    def state(self) -> dict[str, Any]:
        """What decides whether a fault is looked into once more, as plain data."""
        known = [(*fault, list(one.samples), one.reruns) for fault, one in self._explained.items()]
        return {
            "tried": [(*fault, count) for fault, count in self._tried.items()],
            "explained": known,
            "open": asdict(self._open) if self._open is not None else None,
            **{"left": self._left, "alert": self.alert, "caught": self._caught},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` gave."""
        self._tried = Counter({(kind, where): count for kind, where, count in state["tried"]})
        self._explained = {
            (kind, where): Explained(set(samples), reruns)
            for kind, where, samples, reruns in state["explained"]
        }
        self._open = Incident(**state["open"]) if state["open"] is not None else None
        self._left, self.alert, self._caught = state["left"], state["alert"], state["caught"]
        self.idle = not self._left and not self.alert
        if self._left:
            self._watch()

    def close(self) -> None:
        """Switch everything off; tell a cause that no step has asked for (updates by hand)."""
        if self._observer is not None:
            self._observer.stop()
        if self._found is not None:
            self._tell(Incident(self._loss, self._training.iteration, -1))

    # ------------------------------------------------------------------ details

    def _step_context(self) -> StepContext:
        return self._training.step_context(*self._here(), self._root() if self._root else None)

    def _due(self, fault: Fault) -> bool:
        """Whether one more rerun may be spent on a fault."""
        known = self._explained.get(fault)
        if known is not None:
            return self._another(known)
        return self._tried.total() < _EXAMS and self._tried[fault] < _ATTEMPTS

    def _another(self, known: Explained) -> bool:
        """Whether the batch must hold a sample of a known fault that was not named so far."""
        at, before = self._training.iteration, known.last
        known.last = at
        known.nothing_new = known.nothing_new and before >= at - 1
        if not known.samples or known.reruns >= _SAMPLES or known.nothing_new:
            return False
        drawn = [index for batch in self._here()[0] for index in batch.indices or ()]
        return bool(drawn) and known.samples.isdisjoint(drawn)

    def _examine(
        self,
        fault: Fault,
        rerun: Callable[[FrameType | None, StepContext], Cause | None],
        frame: FrameType | None,
    ) -> None:
        known = self._explained.get(fault)
        if known is None:
            self._tried[fault] += 1
        self._found = rerun(frame, self._step_context())
        if known is not None:
            named = {sample for _, sample in self._found.samples} if self._found else set[Any]()
            known.reruns, known.nothing_new = known.reruns + 1, named <= known.samples

    def _order(self, incident: Incident, batches: Sequence[Batch], *, known_in_time: bool) -> None:
        self._tried[incident.fault] += 1
        self._open = incident
        self.alert = _ALERT
        self._left = _OBSERVED if known_in_time else 0
        held = [(b, b.content) for b in batches if b.content is not None]
        if held and len(held) == len(batches) and self._may_replay and ranks() == 1:
            self.again, self._source = held, self._iterator
            self._left = 1
            self.alert = 0
            again = BatchReplay(batches=len(held))
            self._training.record_at(incident.step, again)

    def _watch(self) -> None:
        self._observer = provenance.observer_of(self._step_context())
        self._observer.start()

    def _look_back(self) -> None:
        if self._observer is not None and self._observer.backward_bad_op is not None:
            self._note(self._observer.backward_bad_op)

    def _note(self, first_bad_op: FirstBadOp) -> None:
        if self._found is None:
            how = "replay" if self.replaying else "next"
            self._found = provenance.reported(first_bad_op, self._step_context(), how=how)

    def _tell(self, incident: Incident) -> None:
        found, self._found = self._found, None
        if self._observer is not None:
            self._observer.backward_bad_op = None
        if found is not None:
            known = self._explained.setdefault(incident.fault, Explained())
            known.samples.update(sample for _, sample in found.samples)
            self._left = self.alert = 0
            self.again.clear()
            self.origin = f"{found.file}:{found.line}"
            cause = found.replace(observed=self._training.iteration, opt=incident.opt)
            self._training.explained(incident.step, cause)
