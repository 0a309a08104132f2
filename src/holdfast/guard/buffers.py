"""Module buffers after a step: restore those that a bad forward pass has changed."""

from __future__ import annotations

from torch import Tensor

from ..actions.restore_buffers import BufferKeeper
from ..probes.gradients import Meters
from ..probes.step_record import StepRecord


def settle_buffers(
    keeper: BufferKeeper, record: StepRecord, meters: Meters, *, touch: bool
) -> None:
    """Restore or copy buffers after a step that was taken or skipped.

    Args:
        keeper: holds their copies.
        record: of the step.
        meters: measure them on a device.
        touch: whether anything may be restored at all.
    """
    measured = record.measured
    if measured is None:
        if record.left_out:
            keeper.restore()
            return
        if record.buffers and touch:
            keeper.restore(running_only=True)
        keeper.keep(but=record.buffers)
        return
    if measured.spoilt is not None:
        keeper.settle((measured.flag, measured.spoilt), act=record.acted)
        return
    if not record.buffers or not isinstance(measured.row, Tensor):
        return
    if record.acted:
        keeper.restore_where(measured.flag)
    # From here the flag means "a buffer or a gradient is non-finite": then nothing is copied.
    start = measured.end + (2 if record.scaled else 0)
    values = measured.row[start : start + len(record.buffers)]
    meters.of(measured.row.device).raise_flag(measured.flag, values)
    if record.acted:
        keeper.restore_where(measured.flag, running_only=True)
    keeper.keep_unless(measured.flag)
