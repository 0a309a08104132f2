"""Module buffers after a step: put back what a poisoned forward pass has changed, keep the rest."""

from __future__ import annotations

from torch import Tensor

from ..actions.restore_buffers import BufferKeeper
from ..probes.gradients import Meters
from ..probes.step_record import Verdict


def settle_buffers(keeper: BufferKeeper, verdict: Verdict, meters: Meters, *, touch: bool) -> None:
    """Make buffers right for the step that was taken or left out.

    Args:
        keeper: knows them.
        verdict: of the step.
        meters: to look at them on a device.
        touch: whether anything may be put back at all.
    """
    measured = verdict.measured
    if measured is None:
        if verdict.left_out:
            keeper.restore()
            return
        if verdict.buffers and touch:
            keeper.restore(running_only=True)
        keeper.keep(but=verdict.buffers)
        return
    if measured.spoilt is not None:
        keeper.settle((measured.flag, measured.spoilt), act=verdict.acted)
        return
    if not verdict.buffers or not isinstance(measured.row, Tensor):
        return
    if verdict.acted:
        keeper.restore_where(measured.flag)
    # From here the flag says "a buffer or a gradient is not finite": then nothing is kept.
    start = measured.end + (2 if verdict.scaled else 0)
    values = measured.row[start : start + len(verdict.buffers)]
    meters.of(measured.row.device).raise_flag(measured.flag, values)
    if verdict.acted:
        keeper.restore_where(measured.flag, running_only=True)
    keeper.keep_unless(measured.flag)
