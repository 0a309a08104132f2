"""The rows of a stretch, written together: in most of them nothing but some numbers differs."""

from __future__ import annotations

import functools
import math

import numpy as np

from ..probes._host_norms import INF, GradientReading
from ..probes._norm_rows import Landings, Sums
from ..probes.step_record import BLANK, StepRecord
from ..recovery.rollback import Recovery
from .optimizer_guard import OptimizerGuard
from .step_writer import StepWriter
from .stretch import Noted, Stretch


class StretchRows:
    """Writes the rows of stretches; whatever is not ordinary goes the way of single steps.

    Args:
        writer: of the rows.
        recovery: may want to know a step.
    """

    def __init__(self, writer: StepWriter, recovery: Recovery) -> None:
        self._writer, self._recovery = writer, recovery

    def close(self, stretch: Stretch) -> None:
        """A stretch is over: write its rows, now or when their numbers have arrived."""
        noted, comparability = stretch.noted, self._writer.training.comparability
        for one in noted:
            if one.changed:
                data = {"holds": comparability.holds, "why": comparability.why}
                self._writer.training.record_at("comparable", one.step, data)
        if noted:
            readback = self._writer.readback
            arrived = functools.partial(self._arrived, stretch)
            readback.flying.append((Landings([one.landing for one in noted]), arrived))
            readback.poll()

    def _arrived(self, stretch: Stretch, values: np.ndarray | None) -> None:
        assert values is not None
        guard, layout, writer = stretch.plan.guard, stretch.layout, self._writer
        squares = values[:, : layout.buffers_at].sum(1).tolist()
        told, ordinary = values[:, layout.blocks :].tolist(), _ordinary(stretch)
        concerned = self._recovery.concerns_at
        may = not (stretch.plan.still_scaled or guard.notes or writer.scaler.policy is not None)
        waiting: list[StepRecord] = []
        for i, noted in enumerate(stretch.noted):
            square, numbers = squares[i], told[i]
            usual = square < INF and -INF < numbers[0] < INF and numbers[5] == 0.0
            if may and usual and not concerned(noted.step):
                norms = Sums(layout, values[i])
                waiting.append(_record(stretch, ordinary, noted, math.sqrt(square), numbers, norms))
                continue
            if waiting:
                self._put(guard, waiting)
                waiting = []
            writer.arrived(guard, stretch.record(noted), values[i])
        if waiting:
            self._put(guard, waiting)

    def _put(self, guard: OptimizerGuard, records: list[StepRecord]) -> None:
        self._writer.suspicious = False
        self._writer.put(guard, records)


def _ordinary(stretch: Stretch) -> dict[str, float]:
    """What ordinary rows of a stretch have in common."""
    return BLANK | {
        "opt": float(stretch.plan.guard.index),
        "skipped": 0.0,
        "backwards": stretch.passes,
        "grad_bad": 0.0,
        "grad_layer": -1.0,
        "loss_bad": 0.0,
        "outlier": 0.0,
    }


def _record(
    stretch: Stretch,
    ordinary: dict[str, float],
    noted: Noted,
    norm: float,
    numbers: list[float],
    norms: Sums,
) -> StepRecord:
    """As ``StepRecord.arrive`` fills one in; ``numbers``: loss, answer and extras."""
    guard = stretch.plan.guard
    row = ordinary | noted.host
    row["lr"], row["grad_norm"], row["loss"] = noted.rate, norm, numbers[0]
    row["loss_usual"], row["loss_limit"], row["norm_usual"], row["norm_limit"] = numbers[1:5]
    row["clip"] = numbers[6]
    if stretch.plan.scaled:
        row["scale"], row["scaler_skipped"] = numbers[7], float(numbers[8] > 0)
    record = StepRecord(noted.step, guard.index, row)
    record.time, record.batches = noted.time, noted.batches
    record.layers, record.positions = len(guard.positions), guard.positions
    record.reading = GradientReading(norms, norm)
    return record
