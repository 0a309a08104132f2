"""The rows of a stretch, written together: in most of them nothing but some numbers differs."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...probes.host_norms import INF, GradientReading
from ...probes.norm_rows import Landings, Sums
from ...probes.step_record import BLANK, StepRecord
from ...records.steps import Comparable
from ...recovery.rollback import Recovery
from ..optimizer_guard import OptimizerGuard
from ..step_writer import StepWriter
from .stretch import Noted, Stretch


class _Arrived(NamedTuple):
    """The numbers of all steps of one optimizer."""

    stretch: Stretch
    values: np.ndarray
    squares: list[float]
    """Of norms."""
    buffers: list[float]
    """Not finite where a buffer is not."""
    told: list[list[float]]
    """Loss, answer and extras."""
    ordinary: dict[str, float]
    """What ordinary rows have in common."""
    may: bool
    """Whether there may be such."""

    def usual(self, row: int) -> bool:
        """Whether a step is an ordinary one."""
        loss, outlier = self.told[row][0], self.told[row][5]
        finite = self.squares[row] < INF and self.buffers[row] < INF and -INF < loss < INF
        return self.may and finite and outlier == 0.0


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
                now = Comparable(holds=comparability.holds, why=comparability.why)
                self._writer.training.record_at(one.step, now)
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
        of_each = [self._read(*one) for one in zip(ring, so_far, strict=False)]
        concerned = self._recovery.concerns_at
        whose, waiting = ring[0].turn.plan.guard, list[StepRecord]()
        for n, noted in enumerate(ring[0].noted):
            part, row = of_each[n % parts], n // parts
            guard = part.stretch.turn.plan.guard
            ordinary = part.usual(row) and not concerned(noted.step)
            if waiting and (guard is not whose or not ordinary):
                self._put(whose, waiting)
                waiting = []
            if ordinary:
                whose = guard
                waiting.append(_record(part, noted, row))
            else:
                writer.arrived(guard, part.stretch.record(noted), part.values[row])
        if waiting:
            self._put(whose, waiting)

    def _read(self, stretch: Stretch, values: np.ndarray) -> _Arrived:
        plan, layout, writer = stretch.turn.plan, stretch.layout, self._writer
        may = not (plan.still_scaled or plan.guard.notes or writer.scaler.policy is not None)
        along = layout.buffers_at < layout.blocks
        buffers = values[:, layout.buffers_at : layout.blocks].sum(1).tolist() if along else None
        return _Arrived(
            stretch,
            values,
            squares=values[:, : layout.buffers_at].sum(1).tolist(),
            buffers=buffers or [0.0] * len(values),
            told=values[:, layout.blocks :].tolist(),
            ordinary=_ordinary(stretch),
            may=may,
        )

    def _put(self, guard: OptimizerGuard, records: list[StepRecord]) -> None:
        self._writer.suspicious = False
        if self._writer.training.followed.scaled:
            for record in records:
                self._writer.training.followed.scale(record)
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


def _record(part: _Arrived, noted: Noted, row: int) -> StepRecord:
    """As ``StepRecord.arrive`` fills one in."""
    stretch, numbers, norm = part.stretch, part.told[row], math.sqrt(part.squares[row])
    guard = stretch.turn.plan.guard
    values = part.ordinary | noted.host
    values["lr"], values["grad_norm"], values["loss"] = noted.rate, norm, numbers[0]
    values["loss_usual"], values["loss_limit"] = numbers[1:3]
    values["norm_usual"], values["norm_limit"] = numbers[3:5]
    values["clip"] = numbers[6]
    if stretch.turn.plan.scaled:
        values["scale"], values["scaler_skipped"] = numbers[7], float(numbers[8] > 0)
    record = StepRecord(noted.step, guard.index, values)
    record.time, record.batches = noted.time, noted.batches
    record.layers, record.positions = len(guard.layers), stretch.turn.plan.positions
    norms = Sums(stretch.layout, part.values[row], len(record.positions))
    record.reading = GradientReading(norms, norm)
    return record
