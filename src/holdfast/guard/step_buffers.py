"""Buffers in a step: looked at before it, and kept or restored after it."""

from __future__ import annotations

import torch
from torch import Tensor

from ..actions.restore_buffers import BufferKeeper, SteadyBuffers
from ..probes.gradients import DeviceReading, NormMeters
from ..probes.step_record import StepRecord


class StepBuffers:
    """The buffers of all models, as the guard of one optimizer sees them.

    Args:
        keeper: has them and their copies.
        norm_meters: measure on a device.
        restores: whether buffers are restored at all.
    """

    def __init__(self, keeper: BufferKeeper, norm_meters: NormMeters, *, restores: bool) -> None:
        self.known = keeper.buffers
        self._keeper, self._norm_meters, self._restores = keeper, norm_meters, restores

    @property
    def names(self) -> list[str]:
        """Their names in the model."""
        return [buffer.name for buffer in self.known]

    # ------------------------------------------------------------------ before the step

    def look(self) -> None:
        """Notice which ones the forward passes of this step have changed."""
        self._keeper.look()

    def steady(self, device: torch.device) -> SteadyBuffers | None:
        """All of them, for steps like the last one on ``device``; None where that cannot be."""
        return self._keeper.steady(device, settles=self._restores)

    def state(self) -> list[tuple[int, int] | None]:
        """Another one when one of them is written or replaced."""
        return self._keeper.state() if self.known else []

    def are_finite(self) -> bool:
        """Look at them, on the host."""
        if not self.known:
            return True
        self._keeper.look()
        return self._keeper.finite_on_host()

    def read(self, record: StepRecord) -> None:
        """Find those that are non-finite, on the host."""
        record.buffers = self._keeper.nonfinite_on_host()
        record.see_buffers(record.buffers)

    def to_measure(self, device: torch.device) -> tuple[list[int], list[Tensor]]:
        """Those that move there, and which they are."""
        return self._keeper.to_measure(device)

    def largest(self, device: torch.device) -> tuple[list[int], Tensor | None]:
        """Maximum norm of each of them, and which they are."""
        return self._keeper.largest(device)

    # ------------------------------------------------------------------ after the step

    def keep(self) -> None:
        """An ordinary step on the host is over: what they hold is good."""
        if self.known and self._restores:
            self._keeper.keep()

    def settle(self, record: StepRecord, *, acts: bool) -> None:
        """Restore those that a bad forward pass has changed; copy the others.

        ``acts`` says whether steps of this optimizer are skipped.
        """
        if not (self.known and self._restores):
            return
        if record.measured is not None:
            self._settle_on_device(record, record.measured)
        elif record.skipped:
            self._keeper.restore()
        else:
            if record.buffers and acts:
                self._keeper.restore(running_only=True)
            self._keeper.keep(but=record.buffers)

    def passed_over(self, device: torch.device, *, loss_bad: bool) -> None:
        """A scaler has skipped the step by itself: what its forward pass has ruined goes back.

        After an overflow of gradients alone they stay: the forward pass was a good one.
        """
        if not (self.known and self._restores):
            return
        self._keeper.look()
        if device.type == "cpu":
            if loss_bad or self._keeper.nonfinite_on_host():
                self._keeper.restore()
            return
        _, largest = self._keeper.largest(device)
        if largest is not None:
            norm_meter = self._norm_meters.of(device)
            ruined = norm_meter.flag()
            norm_meter.raise_flag(ruined, largest)
            self._keeper.restore_where(ruined)

    def _settle_on_device(self, record: StepRecord, measured: DeviceReading) -> None:
        """As the flags of the device say."""
        if measured.bad_buffers is not None:
            self._keeper.settle((measured.flag, measured.bad_buffers), act=record.acted)
        elif record.buffers and isinstance(measured.row, Tensor):
            # A buffer or a gradient is non-finite: then nothing is copied.
            bad_buffers = torch.zeros_like(measured.flag)
            start = measured.end + (2 if record.scaled else 0)
            values = measured.row[start : start + len(record.buffers)]
            self._norm_meters.of(measured.row.device).raise_flag(bad_buffers, values)
            self._keeper.settle((measured.flag, bad_buffers), act=record.acted)
        elif self._keeper.moves_only_on(measured.flag.device):
            # Counters and the like, in which nothing can be non-finite.
            bad_buffers = self._norm_meters.of(measured.flag.device).flag()
            self._keeper.settle((measured.flag, bad_buffers), act=record.acted)
