"""The rows of a burst, written together: in most of them nothing but some numbers differs."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...probes.host_norms import INF, GradientReading
from ...probes.norm_rows import NormSums, PinnedRows
from ...probes.step_record import BLANK, StepRecord
from ...records.steps import Comparable
from ...recovery.rollback import Recovery
from ..optimizer_guard import OptimizerGuard
from ..step_writer import StepWriter
from .burst import Noted, StepBurst


class _Arrived(NamedTuple):
    """The numbers of all steps of one optimizer."""

    burst: StepBurst
    values: np.ndarray
    squares: list[float]
    """Of norms."""
    buffers: list[float]
    """Not finite where a buffer is not."""
    reported: list[list[float]]
    """Loss, answer and extras."""
    ordinary: dict[str, float]
    """What ordinary rows have in common."""
    may: bool
    """Whether there may be such."""

    def is_ordinary(self, row: int) -> bool:
        """Whether a step is an ordinary one."""
        loss, outlier = self.reported[row][0], self.reported[row][5]
        finite = self.squares[row] < INF and self.buffers[row] < INF and -INF < loss < INF
        return self.may and finite and outlier == 0.0


class BurstRows:
    """Writes the rows of bursts; whatever is not ordinary goes the way of single steps.

    Args:
        writer: of the rows.
        recovery: may want to know a step.
    """

    def __init__(self, writer: StepWriter, recovery: Recovery) -> None:
        self._writer, self._recovery = writer, recovery

    def close(self, ring: Sequence[StepBurst]) -> None:
        """A burst is over: write its rows, now or when their numbers have arrived.

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
            for burst_part in range(min(len(ring), len(noted))):
                pinned_rows = PinnedRows([one.pinned_row for one in noted[burst_part :: len(ring)]])
                readback.flying.append((pinned_rows, arrived))
            readback.poll()

    def _arrived(
        self, ring: Sequence[StepBurst], so_far: list[np.ndarray], values: np.ndarray | None
    ) -> None:
        """The numbers of one optimizer are there; with those of the last one all are written."""
        assert values is not None
        so_far.append(values)
        parts, writer = len(ring), self._writer
        if len(so_far) < min(parts, len(ring[0].noted)):
            return
        of_each = [self._read(*one) for one in zip(ring, so_far, strict=False)]
        concerned = self._recovery.concerns_at
        whose, waiting = ring[0].burst_part.plan.guard, list[StepRecord]()
        for n, noted in enumerate(ring[0].noted):
            part, row = of_each[n % parts], n // parts
            guard = part.burst.burst_part.plan.guard
            ordinary = part.is_ordinary(row) and not concerned(noted.step)
            if waiting and (guard is not whose or not ordinary):
                self._put(whose, waiting)
                waiting = []
            if ordinary:
                whose = guard
                waiting.append(_record(part, noted, row))
            else:
                writer.arrived(guard, part.burst.record(noted), part.values[row])
        if waiting:
            self._put(whose, waiting)

    def _read(self, burst: StepBurst, values: np.ndarray) -> _Arrived:
        plan, layout, writer = burst.burst_part.plan, burst.layout, self._writer
        may = not (plan.still_scaled or plan.guard.notes or writer.scaler.policy is not None)
        along = layout.buffers_at < layout.blocks
        buffers = values[:, layout.buffers_at : layout.blocks].sum(1).tolist() if along else None
        return _Arrived(
            burst,
            values,
            squares=values[:, : layout.buffers_at].sum(1).tolist(),
            buffers=buffers or [0.0] * len(values),
            reported=values[:, layout.blocks :].tolist(),
            ordinary=_ordinary(burst),
            may=may,
        )

    def _put(self, guard: OptimizerGuard, records: list[StepRecord]) -> None:
        self._writer.suspicious = False
        if self._writer.training.followed.scaled:
            for record in records:
                self._writer.training.followed.scale(record)
        self._writer.put(guard, records)


def _ordinary(burst: StepBurst) -> dict[str, float]:
    """What ordinary rows of a burst have in common."""
    common = BLANK | {
        "opt": float(burst.burst_part.plan.guard.index),
        "skipped": 0.0,
        "backwards": burst.burst_part.passes,
        "grad_bad": 0.0,
        "grad_layer": -1.0,
        "loss_bad": 0.0,
        "outlier": 0.0,
    }
    if burst.measured_along:
        common["buffer_bad"], common["buffer_layer"] = 0.0, -1.0
    return common


def _record(part: _Arrived, noted: Noted, row: int) -> StepRecord:
    """As ``StepRecord.arrive`` fills one in."""
    burst, numbers, norm = part.burst, part.reported[row], math.sqrt(part.squares[row])
    guard = burst.burst_part.plan.guard
    values = part.ordinary | noted.host
    values["lr"], values["grad_norm"], values["loss"] = noted.rate, norm, numbers[0]
    values["loss_baseline"], values["loss_limit"] = numbers[1:3]
    values["norm_baseline"], values["norm_limit"] = numbers[3:5]
    values["clip"] = numbers[6]
    if burst.burst_part.plan.scaled:
        values["scale"], values["scaler_skipped"] = numbers[7], float(numbers[8] > 0)
    record = StepRecord(noted.step, guard.index, values)
    record.time, record.batches = noted.time, noted.batches
    record.layers, record.positions = len(guard.layers), burst.burst_part.plan.positions
    norms = NormSums(burst.layout, part.values[row], len(record.positions))
    record.reading = GradientReading(norms, norm)
    return record
