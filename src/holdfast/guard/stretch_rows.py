"""The rows of a stretch, written together: in most of them nothing but some numbers differs."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from ..probes._host_norms import INF, GradientReading
from ..probes._norm_rows import Landings, Sums
from ..probes.step_record import BLANK, StepRecord
from ..recovery.rollback import Recovery
from .optimizer_guard import OptimizerGuard
from .step_writer import StepWriter
from .stretch import Noted, Stretch

_Arrived = tuple[
    Stretch, list[float], list[float], list[list[float]], np.ndarray, dict[str, float], bool
]
"""Of one optimizer: squares of norms, the other numbers, all of them, what rows have in common, and
whether they may be ordinary."""


class StretchRows:
    """Writes the rows of stretches; whatever is not ordinary goes the way of single steps.

    Args:
        writer: of the rows.
        recovery: may want to know a step.
    """

    def __init__(self, writer: StepWriter, recovery: Recovery) -> None:
        self._writer, self._recovery = writer, recovery

    def close(self, ring: Sequence[Stretch]) -> None:
        """A stretch is over: write its rows, now or when their numbers have arrived.

        ``ring``: the part of each optimizer, in the order of their steps.
        """
        noted, comparability = ring[0].noted, self._writer.training.comparability
        for one in noted:
            if one.changed:
                data = {"holds": comparability.holds, "why": comparability.why}
                self._writer.training.record_at("comparable", one.step, data)
        if noted:
            readback = self._writer.readback
            arrived = functools.partial(self._arrived, ring, [])
            for turn in range(min(len(ring), len(noted))):
                landings = Landings([one.landing for one in noted[turn :: len(ring)]])
                readback.flying.append((landings, arrived))
            readback.poll()

    def _arrived(
        self, ring: Sequence[Stretch], so_far: list[np.ndarray], values: np.ndarray | None
    ) -> None:
        """The numbers of one optimizer are there; with those of the last one all are written."""
        assert values is not None
        so_far.append(values)
        parts, writer = len(ring), self._writer
        if len(so_far) < min(parts, len(ring[0].noted)):
            return
        of_each: list[_Arrived] = []
        for part, values in zip(ring, so_far, strict=False):
            plan, guard, layout = part.turn.plan, part.turn.plan.guard, part.layout
            squares = values[:, : layout.buffers_at].sum(1).tolist()
            spoilt = values[:, layout.buffers_at : layout.blocks].sum(1).tolist()
            told = values[:, layout.blocks :].tolist()
            may = not (plan.still_scaled or guard.notes or writer.scaler.policy is not None)
            of_each.append((part, squares, spoilt, told, values, _ordinary(part), may))
        concerned = self._recovery.concerns_at
        waiting: list[StepRecord] = []
        whose = ring[0].turn.plan.guard
        for n, noted in enumerate(ring[0].noted):
            part, squares, spoilt, told, values, ordinary, may = of_each[n % parts]
            i, guard = n // parts, part.turn.plan.guard
            square, numbers = squares[i], told[i]
            usual = square < INF and -INF < numbers[0] < INF and numbers[5] == 0.0
            usual = usual and spoilt[i] < INF
            if may and usual and not concerned(noted.step):
                whole = math.sqrt(square)
                norms = Sums(part.layout, values[i], len(guard.positions))
                record = _record(part, ordinary, noted, whole, numbers, norms)
                if waiting and whose is not guard:
                    self._put(whose, waiting)
                    waiting = []
                whose = guard
                waiting.append(record)
                continue
            if waiting:
                self._put(whose, waiting)
                waiting = []
            writer.arrived(guard, part.record(noted), values[i])
        if waiting:
            self._put(whose, waiting)

    def _put(self, guard: OptimizerGuard, records: list[StepRecord]) -> None:
        self._writer.suspicious = False
        self._writer.put(guard, records)


def _ordinary(stretch: Stretch) -> dict[str, float]:
    """What ordinary rows of a stretch have in common."""
    common = BLANK | {
        "opt": float(stretch.turn.plan.guard.index),
        "skipped": 0.0,
        "backwards": stretch.turn.passes,
        "grad_bad": 0.0,
        "grad_layer": -1.0,
        "loss_bad": 0.0,
        "outlier": 0.0,
    }
    if stretch.measured_along:
        common["buffer_bad"], common["buffer_layer"] = 0.0, -1.0
    return common


def _record(
    stretch: Stretch,
    ordinary: dict[str, float],
    noted: Noted,
    norm: float,
    numbers: list[float],
    norms: Sums,
) -> StepRecord:
    """As ``StepRecord.arrive`` fills one in; ``numbers``: loss, answer and extras."""
    guard = stretch.turn.plan.guard
    row = ordinary | noted.host
    row["lr"], row["grad_norm"], row["loss"] = noted.rate, norm, numbers[0]
    row["loss_usual"], row["loss_limit"], row["norm_usual"], row["norm_limit"] = numbers[1:5]
    row["clip"] = numbers[6]
    if stretch.turn.plan.scaled:
        row["scale"], row["scaler_skipped"] = numbers[7], float(numbers[8] > 0)
    record = StepRecord(noted.step, guard.index, row)
    record.time, record.batches = noted.time, noted.batches
    record.layers, record.positions = len(guard.positions), guard.positions
    record.reading = GradientReading(norms, norm)
    return record
