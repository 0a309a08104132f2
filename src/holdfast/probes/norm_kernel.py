"""One launch that measures every gradient and raises the flag.

``torch._foreach_norm`` gives the same numbers, but hands back one tensor per gradient: on a model
with 150 of them the host spends longer making those views than the device spends measuring. This
kernel writes the sum of squares of each block of memory in fp64 and raises the flag if one of
them, or the loss, is not finite; the few thousand sums are added up on the host when they
arrive. Module buffers ride along at the end and raise a flag of their own. The block that finishes
last compares the sum of all with the baseline of this run, which the first one has computed.
Where a GradScaler is used its scale and what it found go the same way, and the flag for the
optimizer unites what both have found; behind it stands by how much steps are counted up.
Mostly the sums are written straight into pinned host memory (a ``PinnedRow``): no copy, no event.
Where Triton is missing, or refuses, ``_foreach_norm`` is used.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ._baseline_kernel import USUAL, TermsOnDevice
from ._norm_program import kernel, triton_dtype
from .baseline import WINDOW
from .device_baseline import ANSWERS, HEAD, JudgedStep
from .launch import launcher
from .norm_rows import CHUNK, CHUNKS, Layout, PinnedRow, pinned_rows


@dataclass(slots=True)
class ScalerOnDevice:
    """A GradScaler in a step that is judged: everything on the device of the gradients."""

    scale: Tensor
    found: Tensor
    """More than zero where the scaler has found something that is not finite."""
    pending: Tensor
    """The flag for the optimizer: raised if the step is bad, or if the scaler says so."""


FlagPair = tuple[Tensor, Tensor]
"""A flag, and the number behind it: 1 less the flag, where a launch has judged."""


SCALER = 2
"""Numbers of a scaler behind the answer: its scale, and what it has found."""


# Lists of addresses that a device keeps: an allocator hands out the same ones in turn, and 36 were
# seen in 100 steps of a trainer, over 64 in 300 of another.
_REPORTED = 256
# Layouts that are kept: of steps with and without buffers, of tasks and layers that take turns.
_LAID = 16

_Laid = tuple[
    Layout,
    int,
    list[int],
    dict[tuple[int, ...], Tensor],
    dict[tuple[Any, ...], Callable[..., object]],
    deque[PinnedRow],
]
"""A layout and what belongs to it: how many gradients it has, what is the same in all its launches,
addresses and launches that are known, rows to write."""


class NormKernel:
    """Measures gradients of one dtype on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.layout: Layout | None = None
        self._gradients = 0
        self.uploaded: list[int] = []
        """Addresses of the tensors that were measured last."""
        self._addresses = torch.empty(0, dtype=torch.int64, device=device)
        # What the device has been told already, the latest last: the same come back.
        self._reported: dict[tuple[int, ...], Tensor] = {}
        self._fixed: list[int] = []
        self._tables: deque[tuple[Tensor, np.ndarray, torch.cuda.Event]] = deque()
        self._pinned_rows: deque[PinnedRow] = deque()
        self._launchers: dict[tuple[Any, ...], Callable[..., object]] = {}
        self._laid: dict[tuple[int, ...], _Laid] = {}
        """By sizes and number of gradients, the latest last."""
        self._terms = TermsOnDevice(device)
        # The sum over all blocks, and how many have added theirs; left at zero by the last one.
        # Behind the sum: the baseline, for the one that judges.
        self._total = torch.zeros(1 + USUAL, dtype=torch.float64, device=device)
        self._done = torch.zeros((), dtype=torch.int32, device=device)
        self.factor = torch.ones(2, dtype=torch.float32, device=device)
        """Of the last step: what gradients are to be multiplied with, the bits of an outlier."""
        self._work, self._count, self._factor = (
            t.data_ptr() for t in (self._total, self._done, self.factor)
        )

    def measure(
        self,
        grads: Sequence[Tensor],
        loss: Tensor | None,
        flags: tuple[Tensor, Tensor],
        decides: bool,
        pinned_row: bool,
        buffers: Sequence[Tensor],
        asked: JudgedStep | None,
        scaler: ScalerOnDevice | None,
    ) -> tuple[Tensor | PinnedRow, Layout] | None:
        """Launch; the row holds the sums of all blocks, the loss and the answer behind them.

        None when the kernel cannot read these tensors.

        Args:
            grads: gradients of one dtype.
            loss: the loss.
            flags: raised by a non-finite gradient or loss, and by a non-finite buffer.
            decides: whether the loss raises the flag.
            pinned_row: whether the row may go straight to the host.
            buffers: of the same dtype.
            asked: what is to be judged, if anything.
            scaler: what rides behind the answer, where a scaler is used and a step is judged.
        """
        measured = [*grads, *buffers] if buffers else grads
        addresses = list(map(Tensor.data_ptr, measured))
        if addresses != self.uploaded and not self.place(measured, len(grads), addresses):
            return None
        layout = self.layout
        assert layout is not None
        width = layout.blocks + (loss is not None)
        if asked is not None:
            width = layout.blocks + 1 + ANSWERS + (0 if scaler is None else SCALER)
        if pinned_row and self._pinned_rows:
            row: Tensor | PinnedRow = self._pinned_rows.popleft()
            row.expected = width
        else:
            count = max(width, layout.blocks + 1)
            row = torch.empty(count, dtype=torch.float64, device=self._device)
        flag, bad_buffers = flags
        seen = loss if loss is not None else flag
        has_loss, judged = loss is not None, asked is not None
        scale = flag if asked is None or asked.scale is None else asked.scale
        state = terms = flag
        if asked is not None:
            state, terms = asked.state, asked.vector
            if terms is None:
                terms = self._terms.of(asked)
        found = pending = flag
        if scaler is not None:
            scale, found, pending = scaler.scale, scaler.found, scaler.pending
        scaled = scaler is not None
        kind = (has_loss, decides, seen.dtype, judged, scale is flag, scale.dtype, scaled)
        start = self._launchers.get(kind)
        if start is not None:
            # Addresses as numbers, because the driver is asked about every pointer of a tensor.
            at = flag.data_ptr()
            start(
                *self._fixed,
                row.address if isinstance(row, PinnedRow) else row.data_ptr(),
                at,
                at if bad_buffers is flag else bad_buffers.data_ptr(),
                seen.data_ptr(),
                layout.blocks,
                layout.buffers_at,
                at if scale is flag else scale.data_ptr(),
                state.data_ptr(),
                terms.data_ptr(),
                self._work,
                self._count,
                self._factor,
                at if found is flag else found.data_ptr(),
                at if pending is flag else pending.data_ptr(),
                None,
                decides,
                has_loss,
                judged,
                scaled,
                CHUNK,
                CHUNKS,
                HEAD,
                WINDOW,
            )
            return row, layout
        grid = (layout.blocks + has_loss + judged, 1, 1)
        compiled = kernel()[grid](
            self._addresses,
            *layout.on_device,
            row.row if isinstance(row, PinnedRow) else row,
            flag,
            bad_buffers,
            seen,
            layout.blocks,
            layout.buffers_at,
            scale,
            state,
            terms,
            self._total,
            self._done,
            self.factor,
            found,
            pending,
            DTYPE=triton_dtype(grads[0].dtype),
            DECIDES=decides,
            HAS_LOSS=has_loss,
            JUDGED=judged,
            SCALED=scaled,
            CHUNK=CHUNK,
            CHUNKS=CHUNKS,
            HEAD=HEAD,
            WINDOW=WINDOW,
            num_warps=8,
        )
        self._launchers[kind] = launcher(compiled, grid)
        return row, layout

    def place(self, measured: Sequence[Tensor], gradients: int, addresses: list[int]) -> bool:
        """Tensors are elsewhere than in the last step; False when they cannot be read."""
        if not _readable(measured):
            return False
        self._lay_out(measured, gradients)
        self._upload(addresses)
        return True

    def repeat(
        self,
        decides: bool,
        loss: torch.dtype,
        asked: JudgedStep,
        scale: Tensor | None,
        buffers: Sequence[Tensor],
        new_pair: Callable[[], FlagPair],
    ) -> Repeat | None:
        """What launches like the last step did, with a loss and with these buffers."""
        plain = scale is None
        dtype = torch.float32 if scale is None else scale.dtype
        kind = (True, decides, loss, True, plain, dtype, not plain)
        start, layout = self._launchers.get(kind), self.layout
        if start is None or layout is None:
            return None
        if self._gradients + len(buffers) != len(layout.sizes):
            return None
        if asked.vector is None:
            return None
        asks = asked.state.data_ptr(), asked.vector.data_ptr()
        about = self, layout, start, self._fixed, self._pinned_rows, asks, decides, scale
        return Repeat(*about, buffers, new_pair)

    @property
    def work(self) -> tuple[int, int, int]:
        """Addresses of what the programs of a launch share."""
        return self._work, self._count, self._factor

    def _lay_out(self, measured: Sequence[Tensor], gradients: int) -> None:
        sizes = list(map(Tensor.numel, measured))
        if self.layout is not None and (self.layout.sizes, self._gradients) == (sizes, gradients):
            return
        key = (*sizes, gradients)
        laid = self._laid.pop(key, None)
        if laid is None:
            layout = Layout.of(sizes, gradients, self._device)
            fixed = [0, *(t.data_ptr() for t in layout.on_device)]
            # Those still on their way keep their memory until they are read.
            rows = pinned_rows(2 * ((layout.blocks + ANSWERS + SCALER) // 2 + 1))
            laid = layout, gradients, fixed, {}, {}, rows
        self._laid[key] = laid
        if len(self._laid) > _LAID:
            del self._laid[next(iter(self._laid))]
        (
            self.layout,
            self._gradients,
            self._fixed,
            self._reported,
            self._launchers,
            self._pinned_rows,
        ) = laid

    def _upload(self, addresses: list[int]) -> None:
        """Tell the device where the gradients are; some loops allocate them anew each step."""
        key, count = tuple(addresses), len(addresses)
        reported = self._reported.pop(key, None)
        if reported is None:
            if len(self._reported) < _REPORTED:
                reported = torch.empty(count, dtype=torch.int64, device=self._device)
            else:
                reported = self._reported.pop(next(iter(self._reported)))
            pinned, view, event = self._table(count)
            view[:] = addresses
            reported.copy_(pinned, non_blocking=True)
            event.record()
        self._reported[key] = self._addresses = reported
        self._fixed[0] = reported.data_ptr()
        self.uploaded = addresses

    def _table(self, count: int) -> tuple[Tensor, np.ndarray, torch.cuda.Event]:
        """A pinned table whose last upload is over, the oldest first; else a new one."""
        if self._tables and self._tables[0][1].size != count:
            self._tables.clear()
        if self._tables and self._tables[0][2].query():
            self._tables.rotate(-1)
            return self._tables[-1]
        tensor = torch.empty(count, dtype=torch.int64, pin_memory=True)
        self._tables.append((tensor, tensor.numpy(), torch.cuda.Event()))
        return self._tables[-1]


class Repeat:
    """A launch like those before it: only the row, the flags and the loss are others.

    ``scale`` is that of a GradScaler, where there is one: a number on the device that changes.
    ``buffers`` stay where they are, ``new_pair`` gives a flag that is down.
    """

    def __init__(
        self,
        kernel: NormKernel,
        layout: Layout,
        start: Callable[..., object],
        fixed: list[int],
        pinned_rows: deque[PinnedRow],
        asks: tuple[int, int],
        decides: bool,
        scale: Tensor | None,
        buffers: Sequence[Tensor],
        new_pair: Callable[[], FlagPair],
    ) -> None:
        self.layout, self.factor, self.scale = layout, kernel.factor, scale
        self.new_pair = new_pair
        self._kernel, self._start, self._fixed, self._pinned_rows = (
            kernel,
            start,
            fixed,
            pinned_rows,
        )
        self._asks, self._work, self.decides = asks, kernel.work, decides
        self._buffers, self._places = buffers, list(map(Tensor.data_ptr, buffers))
        self._scale = 0 if scale is None else scale.data_ptr()
        self._width = layout.blocks + 1 + ANSWERS + (SCALER if self._scale else 0)

    def launch(
        self,
        grads: Sequence[Tensor],
        addresses: list[int],
        flags: tuple[int, int],
        loss: int,
        reported: tuple[int, int],
    ) -> PinnedRow | None:
        """Where the row will be; None where something has changed.

        Args:
            grads: the gradients.
            addresses: where they are.
            flags: where the flag is, and that of buffers, both down; without buffers one.
            loss: where the loss is.
            reported: where it says what a scaler has found, and where the flag of both is; without
                a scaler twice the flag.
        """
        kernel, count = self._kernel, len(grads)
        if self._places:
            grads, addresses = [*grads, *self._buffers], addresses + self._places
        if addresses != kernel.uploaded:
            # Where gradients of these parameters were before they can be read again.
            if kernel.layout is self.layout and tuple(addresses) in kernel._reported:
                kernel._upload(addresses)
            elif not kernel.place(grads, count, addresses):
                return None
        if kernel.layout is not self.layout or not self._pinned_rows:
            return None
        pinned_row = self._pinned_rows.popleft()
        pinned_row.expected = self._width
        state, terms = self._asks
        self._start(
            *self._fixed,
            pinned_row.address,
            *flags,
            *(loss, self.layout.blocks, self.layout.buffers_at),
            *(self._scale or flags[0], state, terms),
            *self._work,
            *reported,
            *(None, self.decides, True, True, self._scale != 0, CHUNK, CHUNKS, HEAD, WINDOW),
        )
        return pinned_row


def _readable(grads: Sequence[Tensor]) -> bool:
    """Whether the kernel can read these: one dtype, one device, memory without holes."""
    return (
        grads[0].is_cuda
        and all(map(Tensor.is_contiguous, grads))
        and len(set(map(_dtype_of, grads))) == 1
        and len(set(map(Tensor.get_device, grads))) == 1
    )


_dtype_of = operator.attrgetter("dtype")
