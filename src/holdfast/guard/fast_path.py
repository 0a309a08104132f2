"""Fast path for ordinary CPU steps.

Most steps of a healthy run are like the one before: the same optimizer and parameters, one loss,
finite numbers near their baseline, nothing to be sampled. The full path repeats dozens of checks
whose results have not changed, with cold caches. The fast path makes them once, after a step on
the full path; the steps that follow make only the remaining checks, and in any doubt take the full
path. Both write the same rows, which a test compares.
"""

from __future__ import annotations

import math
import operator
import weakref
from collections.abc import Callable
from itertools import repeat

from torch.optim import Optimizer

from ..diagnosis.nonfinite.investigation import Investigation
from ..probes import learning_rate
from ..probes.loss import Losses
from ..probes.step_record import BLANK, StepRecord
from ..probes.updates import EVERY as UPDATES_EVERY
from ..recovery.rollback import Recovery
from ..suspicion import LOOK
from .kernel_cost import EVERY as COST_EVERY
from .optimizer_guard import OptimizerGuard, grad_of, parameters_of
from .step_writer import StepWriter

Opened = tuple[OptimizerGuard, StepRecord]


class FastPath:
    """Checks that hold for all steps of the only optimizer until something changes."""

    def __init__(
        self, writer: StepWriter, investigation: Investigation, recovery: Recovery
    ) -> None:
        self._writer = writer
        self._investigation, self._recovery = investigation, recovery
        self._guard: OptimizerGuard | None = None
        self._optimizer: Callable[[], Optimizer | None] = lambda: None
        self._groups = 0
        self._every = 1
        self._row = BLANK

    def open(self, optimizer: Optimizer, losses: Losses) -> Opened | None:
        """Decide about the next step; None when it must take the full path."""
        guard, writer, investigation = self._guard, self._writer, self._investigation
        groups = optimizer.param_groups
        training = writer.training
        step = training.iteration + 1
        if (
            guard is None
            or self._optimizer() is not optimizer
            # Loading a state makes a new list of groups.
            or id(groups) != self._groups
            or losses.passes != 1
            or len(losses.numbers) != 1
            or step % self._every == 0
            or not investigation.idle
            or investigation.replaying
            or self._recovery.awaits_step
        ):
            return None
        grads = list(map(grad_of, parameters_of(optimizer)))
        if len(grads) != len(guard.layers) or any(map(operator.is_, grads, repeat(None))):
            return None
        if not grads[0].is_cpu or not guard.norms.easy(grads):
            return None
        reading = guard.norms.read(grads, True)
        loss = losses.numbers[0]
        if reading.bad or not guard.outliers.baseline.usual(loss, reading.total):
            return None
        training.iteration = step
        record = StepRecord(step, guard.index, self._row.copy())
        record.usual = True
        record.positions, record.layers = guard.positions, len(grads)
        record.reading = reading
        row = record.row
        rate = groups[0].get("lr")
        row["lr"] = rate if type(rate) is float else learning_rate.read(optimizer)
        row["loss"] = loss
        row["grad_norm"] = reading.total
        row["loss_usual"], row["loss_limit"], row["norm_usual"], row["norm_limit"] = (
            guard.outliers.baseline.numbers
        )
        return guard, record

    def forget(self) -> None:
        """Something changed: the next step takes the full path."""
        self._guard = None

    def learn(self, optimizer: Optimizer, guard: OptimizerGuard, record: StepRecord) -> None:
        """After a step on the full path: decide whether the next ones may take the fast path."""
        writer = self._writer
        well = record.reading is not None and not (record.bad or record.outlier or record.late)
        registry = writer.training.registry
        alone = len(registry) == 1 and not registry.buffers.buffers
        if not well or not alone or record.measured is not None or guard.detect_only:
            return
        if guard.whole is not None:
            return  # the other ranks wait for its numbers
        if self._recovery.attentive or not guard.outliers.passive or not writer.at_ease(guard):
            return
        parameters = parameters_of(optimizer)
        if len(guard.positions) != len(parameters) or not all(p.is_cpu for p in parameters):
            return
        self._guard = guard
        self._optimizer = weakref.ref(optimizer)
        self._groups = id(optimizer.param_groups)
        self._every = math.gcd(LOOK, COST_EVERY, writer.often(UPDATES_EVERY), *writer.samples())
        self._row = BLANK | {
            "opt": float(guard.index),
            "skipped": 0.0,
            "grad_bad": 0.0,
            "grad_layer": -1.0,
            "loss_bad": 0.0,
            "outlier": 0.0,
            "clip": 1.0,
            "backwards": 1.0,
        }
