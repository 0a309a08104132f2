"""Per-tensor gradient norms and whether each gradient is finite.

The L2 norm decides: it is not finite when, and only when, a gradient is not, provided the squares
cannot overflow. On a device it is therefore summed in fp64, one pass over memory, and the row of
norms travels to the host without being waited for. On the host fp64 would be slow: there fp32
comes first and only a non-finite norm is computed again.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from . import device_baseline
from ._baseline_kernel import JudgeAlone
from ._norm_program import available
from .device_baseline import ANSWERS, JudgedStep
from .host_norms import INF, GradientReading
from .norm_kernel import FlagPair, NormKernel, Repeat, ScalerOnDevice
from .norm_rows import Layout, NormSums, PinnedRow

_NOTHING = contextlib.nullcontext()
# Without the call around it, which asks whether CUDA is there.
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", lambda: -1)
_dtype_of: Callable[[Tensor], torch.dtype] = operator.attrgetter("dtype")


def norms_on_device(grads: list[Tensor], home: torch.device) -> Tensor:
    """L2 norm per tensor in fp64, as one vector on ``home``."""
    if all(g.device == home for g in grads):
        return _norms(grads)
    found: list[Tensor] = [torch.empty(0)] * len(grads)
    for device in {g.device for g in grads}:
        here = [i for i, g in enumerate(grads) if g.device == device]
        norms = _norms([grads[i] for i in here]).to(home, non_blocking=True)
        for n, i in enumerate(here):
            found[i] = norms[n]
    return torch.stack(found)


def _norms(grads: list[Tensor]) -> Tensor:
    norms = torch._foreach_norm(grads, 2, torch.float64)
    first, last = norms[0], norms[-1]
    # On CUDA the results are neighbours in one block of memory: no launch to collect them.
    if (
        last.data_ptr() - first.data_ptr() == 8 * (len(norms) - 1)
        and first.untyped_storage().data_ptr() == last.untyped_storage().data_ptr()
    ):
        return first.as_strided((len(norms),), (1,))
    return torch.stack(norms)


@dataclass(slots=True)
class DeviceReading:
    """Gradients measured on a device: the flag is good now, the numbers when they arrive.

    The row is ``[norms or sums of blocks | loss | answer | extras]``, all fp64; of the extras scale
    and findings of a scaler come first. The flag is exactly
    0.0 or 1.0, which is what the fused optimizer kernels compare with. Where ranks have summed
    their norms, how many of them cannot skip stands behind the loss.
    """

    row: Tensor | PinnedRow
    flag: Tensor
    tensors: int
    has_loss: bool
    layout: Layout | None = None
    bad_buffers: Tensor | None = None
    """A flag of the same kind for buffers, where those were measured along."""
    factor: Tensor | None = None
    """Where a step was judged: the factor for the gradients, the outlier's bits."""
    summed: bool = False
    """Whether these are the norms of all ranks."""
    pending: Tensor | None = None
    """The flag united with what a scaler has found, where that was done along."""

    @property
    def along(self) -> bool:
        """Whether buffers were measured along."""
        return self.layout is not None and self.layout.buffers_at < self.layout.blocks

    @property
    def _answer_at(self) -> int:
        if self.layout is not None:
            return self.layout.blocks + 1
        return self.tensors + self.has_loss + self.summed

    @property
    def end(self) -> int:
        """Where extras begin."""
        return self._answer_at + (0 if self.factor is None else ANSWERS)

    def answer(self, values: np.ndarray) -> list[float] | None:
        """What the baseline said, once the row has arrived; None where it was not asked."""
        if self.factor is None:
            return None
        return values[self._answer_at : self.end].tolist()

    def squares(self) -> Tensor:
        """Square of the norm of each tensor, on the device."""
        assert isinstance(self.row, Tensor)
        if self.layout is None:
            return self.row[: self.tensors].square()
        owner = self.layout.on_device[1][: self.layout.buffers_at]
        sums = torch.zeros(self.tensors, dtype=torch.float64, device=self.row.device)
        return sums.index_add_(0, owner, self.row[: self.layout.buffers_at])

    def hold(self) -> None:
        """Lower the flag where a rank cannot skip: then none does."""
        if self.summed and isinstance(self.row, Tensor):
            self.flag.mul_(self.row[self.tensors + self.has_loss] == 0)

    def refused(self, values: np.ndarray) -> bool:
        """Whether a rank could not skip this step, once the row has arrived."""
        return self.summed and bool(values[self.tensors + self.has_loss])

    def judge(self, asked: JudgedStep, alone: JudgeAlone | None) -> None:
        """Ask about gradients that were measured earlier; nothing may lie behind the loss yet."""
        assert isinstance(self.row, Tensor)
        if self.layout is not None:
            square = self.row[: self.layout.buffers_at].sum()
            loss = self.row[self.layout.blocks] if self.has_loss else None
        else:
            square = self.row[: self.tensors].square().sum()
            loss = self.row[self.tensors] if self.has_loss else None
        if alone is not None:
            answer, self.factor = alone.judge(asked, square, loss, self.flag)
        else:
            answer = device_baseline.judge(asked, square, loss, self.flag)
            # Picked one by one: an index made of a list would be copied from the host.
            self.factor = torch.stack((answer[5], answer[4])).float()
        self.row = torch.cat([self.row[: self._answer_at], answer])

    def is_ordinary(self, values: np.ndarray) -> tuple[GradientReading, list[float]] | None:
        """The row of an ordinary step: its norms; loss, answer and extras. None for any other."""
        layout = self.layout
        if layout is None or self.factor is None or not self.has_loss:
            return None
        square = float(values[: layout.buffers_at].sum())
        reported = values[layout.blocks :].tolist()
        if not (square < INF and -INF < reported[0] < INF and reported[5] == 0.0):
            return None
        if not values[layout.buffers_at : layout.blocks].sum() < INF:
            return None
        return GradientReading(NormSums(layout, values, self.tensors), math.sqrt(square)), reported

    def read(self, values: np.ndarray) -> tuple[GradientReading, float, np.ndarray]:
        """The row has arrived: gradient reading, loss (NaN without one) and extras."""
        extras = values[self.end :]
        if self.layout is not None:
            loss = float(values[self.layout.blocks]) if self.has_loss else math.nan
            square = float(values[: self.layout.buffers_at].sum())
            if self.along:
                extras = np.concatenate([extras, self.layout.norms(values)[self.tensors :]])
            if square < INF:
                norms = NormSums(self.layout, values, self.tensors)
                return GradientReading(norms, math.sqrt(square)), loss, extras
            norms = self.layout.norms(values)[: self.tensors]
        else:
            norms = values[: self.tensors]
            loss = float(values[self.tensors]) if self.has_loss else math.nan
        reading = GradientReading(norms, math.sqrt(float(np.dot(norms, norms))))
        if not reading.total < INF:
            reading.bad = np.flatnonzero(~np.isfinite(norms)).tolist()
            reading.largest = float(norms[reading.bad[-1]]) if reading.bad else math.nan
        return reading, loss, extras


class NormMeter:
    """Measures gradients on one device, with one launch where that can be had."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._index = device.index
        self._one = torch.ones((), dtype=torch.float32, device=device)
        self.unused: list[FlagPair] = []
        """Flags that are down; ``flag_pair`` makes more of them."""
        self._zero = torch.zeros((), dtype=torch.float32, device=device)
        self._kernels: dict[torch.dtype, NormKernel] = {}
        self._no_kernel = device.type != "cuda"
        self._alone: JudgeAlone | None = None

    def measure(
        self,
        grads: list[Tensor],
        loss: Tensor | None,
        *,
        loss_decides: bool,
        extras: Sequence[Tensor] | None = (),
        buffers: Sequence[Tensor] = (),
        asked: JudgedStep | None = None,
        scaler: tuple[Tensor, Tensor | None] | None = None,
    ) -> DeviceReading:
        """Start measuring and decide; nothing here waits for the device.

        Args:
            grads: the gradients.
            loss: the loss, or None.
            loss_decides: whether a bad loss alone raises the flag.
            extras: vectors that travel in the same row; None when they come later.
            buffers: measured along, where ``can_take`` says so.
            asked: whether the norm is an outlier, if that is to be judged.
            scaler: scale of a GradScaler and what it has found, which are the first extras.
        """
        flag = self.flag()
        reading = None
        if not self._no_kernel:
            along = None if asked is None or extras else self._along(scaler)
            pinned_row = extras is not None and not extras and (along is None) == (scaler is None)
            about = grads, loss, flag, loss_decides, pinned_row, buffers, asked, along
            try:
                reading = self._by_kernel(*about)
            except Exception:
                # No compiler, no place for its cache: the plain way gives the same answer.
                self._no_kernel = True
            if reading is not None and along is not None:
                reading.pending, scaler = along.pending, None
        if reading is None:
            norms = norms_on_device(grads, self._device)
            row = norms if loss is None else torch.cat([norms, loss.reshape(1)])
            self.raise_flag(flag, row if loss_decides else row[: len(grads)])
            reading = DeviceReading(row, flag, len(grads), loss is not None)
            if asked is not None:
                self.judge(reading, asked)
        if scaler is not None:
            extras = [*self.apart(*scaler), *(extras or ())]
        if extras and isinstance(reading.row, Tensor):
            reading.row = torch.cat([reading.row, *extras])
        return reading

    def again(
        self,
        grads: list[Tensor],
        loss: Tensor,
        *,
        loss_decides: bool,
        asked: JudgedStep,
        scaler: tuple[Tensor, Tensor | None] | None,
    ) -> DeviceReading | None:
        """``measure`` as in the step before; None when that is not possible.

        Args:
            grads: of one dtype.
            loss: the loss.
            loss_decides: whether a bad loss alone raises the flag.
            asked: whether the norm is an outlier.
            scaler: scale of a GradScaler and what it has found.
        """
        kernel = None if self._no_kernel else self._kernels.get(grads[0].dtype)
        # A launch goes to the current device; to enter another one is left to ``measure``.
        if kernel is None or _current_device() != self._index:
            return None
        along = None
        if scaler is not None and (along := self._along(scaler)) is None:
            return None
        flag = self.flag()
        found = kernel.measure(grads, loss, (flag, flag), loss_decides, True, (), asked, along)
        if found is None:
            return None
        return DeviceReading(
            found[0],
            flag,
            len(grads),
            True,
            found[1],
            None,
            kernel.factor,
            False,
            None if along is None else along.pending,
        )

    def repeat(
        self,
        decides: bool,
        grad: torch.dtype,
        loss: torch.dtype,
        asked: JudgedStep,
        scale: Tensor | None,
        buffers: Sequence[Tensor],
    ) -> Repeat | None:
        """What launches like the last step did; None where there is no such thing.

        Args:
            decides: whether a bad loss alone raises the flag.
            grad: of the gradients.
            loss: of the loss.
            asked: whether the norm is an outlier.
            scale: of a GradScaler.
            buffers: measured along, where they are all the time.
        """
        kernel = None if self._no_kernel else self._kernels.get(grad)
        here = _current_device() == self._index
        here = here and (scale is None or scale.device == self._device)
        if kernel is None or not here:
            return None
        return kernel.repeat(decides, loss, asked, scale, buffers, self.flag_pair)

    def _along(self, scaler: tuple[Tensor, Tensor | None] | None) -> ScalerOnDevice | None:
        """What the kernel reads and writes for a scaler; None where it cannot reach that."""
        if scaler is None:
            return None
        scale, found = scaler[0], self._zero if scaler[1] is None else scaler[1]
        here = scale.device == self._device and found.device == self._device
        return ScalerOnDevice(scale, found, self.flag()) if here else None

    def apart(self, scale: Tensor, found: Tensor | None) -> list[Tensor]:
        """What a scaler says, as extras of a row."""
        reported = self._zero if found is None else found
        return [t.reshape(1).to(self._device, non_blocking=True) for t in (scale, reported)]

    def judge(self, reading: DeviceReading, asked: JudgedStep) -> None:
        """Ask about gradients that were measured before the user clipped them."""
        if not self._no_kernel and available(torch.float32) and self._alone is None:
            self._alone = JudgeAlone(self._device)
        reading.judge(asked, self._alone)

    def of_all_ranks(self, sums: Tensor, measured: DeviceReading | None) -> DeviceReading:
        """The reading of a step of which all ranks have summed their squares.

        Args:
            sums: the squares of each parameter; behind them how many ranks cannot skip.
            measured: what this rank has measured: its loss stays its own.
        """
        flag, count = self.flag(), len(sums) - 1
        sums = sums.to(self._device, non_blocking=True)
        self.raise_flag(flag, sums[:count])
        parts = [sums[:count].sqrt(), sums[count:]]
        has_loss = measured is not None and measured.has_loss
        if measured is not None and has_loss and isinstance(measured.row, Tensor):
            at = measured.tensors if measured.layout is None else measured.layout.blocks
            parts.insert(1, measured.row[at : at + 1])
        return DeviceReading(torch.cat(parts), flag, count, has_loss, summed=True)

    def can_take(self, buffers: Sequence[Tensor], dtype: torch.dtype) -> bool:
        """Whether these can be measured in the same launch as gradients of this dtype."""
        alike = {*map(_dtype_of, buffers)} <= {dtype}
        return not self._no_kernel and available(dtype) and alike

    def flag(self) -> Tensor:
        """A flag that is down."""
        return self.flag_pair()[0]

    def flag_pair(self) -> FlagPair:
        """A flag that is down, and the number behind it."""
        if not self.unused:
            # Cleared by the dozen: one launch for many steps. 16 bytes apart, since Triton compiles
            # a kernel once more for the first address that is no multiple of that.
            room = torch.zeros(64, 4, dtype=torch.float32, device=self._device)
            self.unused = list(zip(room[:, 0].unbind(), room[:, 1].unbind(), strict=True))
        return self.unused.pop()

    def _by_kernel(
        self,
        grads: list[Tensor],
        loss: Tensor | None,
        flag: Tensor,
        decides: bool,
        pinned_row: bool,
        buffers: Sequence[Tensor],
        asked: JudgedStep | None,
        scaler: ScalerOnDevice | None,
    ) -> DeviceReading | None:
        dtype = grads[0].dtype
        kernel = self._kernels.get(dtype)
        if kernel is None:
            if not available(dtype):
                return None
            kernel = self._kernels[dtype] = NormKernel(self._device)
        bad_buffers = self.flag() if buffers else None
        flags = (flag, flag if bad_buffers is None else bad_buffers)
        about = grads, loss, flags, decides, pinned_row, buffers, asked, scaler
        # Entering a device costs more than asking which one it is.
        here = torch.cuda.current_device() == self._device.index
        with _NOTHING if here else torch.cuda.device(self._device):
            found = kernel.measure(*about)
        if found is None:
            return None
        factor = kernel.factor if asked is not None else None
        return DeviceReading(
            found[0], flag, len(grads), loss is not None, found[1], bad_buffers, factor
        )

    def raise_flag(self, flag: Tensor, values: Tensor) -> None:
        """Set the flag to 1.0 if ``values`` holds anything not finite (one launch)."""
        torch._amp_foreach_non_finite_check_and_unscale_([values], flag, self._one)


class NormMeters:
    """One meter per device; each optimizer has its own: to lay out gradients anew takes long."""

    def __init__(self) -> None:
        self._norm_meters: dict[torch.device, NormMeter] = {}

    def of(self, device: torch.device) -> NormMeter:
        """The meter of a device."""
        norm_meter = self._norm_meters.get(device)
        if norm_meter is None:
            norm_meter = self._norm_meters[device] = NormMeter(device)
        return norm_meter
