"""One launch that measures every gradient and raises the flag.

``torch._foreach_norm`` gives the same numbers, but hands back one tensor per gradient: on a model
with 150 of them the host spends longer making those views than the device spends measuring. This
kernel writes the sum of squares of each block of memory in fp64 and raises the flag if one of
them, or the loss, is not finite; the few thousand sums are added up on the host when they
arrive. Where Triton is missing, or refuses, ``_foreach_norm`` is used.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

_CHUNK = 4096
_CHUNKS = 16
_BLOCK = _CHUNK * _CHUNKS


@dataclass(slots=True)
class Layout:
    """Which part of a row of sums belongs to which gradient; kept while shapes stay the same."""

    sizes: list[int]
    starts: np.ndarray
    blocks: int
    on_device: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def of(cls, sizes: list[int], device: torch.device) -> Layout:
        """Cut every gradient into blocks; an empty one gets a block of nothing."""
        counts = [max(1, -(-size // _BLOCK)) for size in sizes]
        owner = np.repeat(np.arange(len(sizes)), counts)
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.int64)
        offset = (np.arange(len(owner)) - starts[owner]) * _BLOCK
        columns = (np.array(sizes, dtype=np.int64), owner.astype(np.int64), offset.astype(np.int64))
        tables = [torch.from_numpy(c).pin_memory().to(device, non_blocking=True) for c in columns]
        return cls(sizes, starts, len(owner), (tables[0], tables[1], tables[2]))

    def norms(self, sums: np.ndarray) -> np.ndarray:
        """L2 norm per gradient from the sums of its blocks."""
        return np.sqrt(np.add.reduceat(sums[: self.blocks], self.starts))


class NormKernel:
    """Measures gradients of one dtype on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._layout: Layout | None = None
        self._uploaded: list[int] = []
        self._addresses = torch.empty(0, dtype=torch.int64, device=device)
        self._tables: deque[tuple[Tensor, np.ndarray, torch.cuda.Event]] = deque()

    def measure(
        self, grads: Sequence[Tensor], loss: Tensor | None, flag: Tensor, *, loss_decides: bool
    ) -> tuple[Tensor, Layout]:
        """Launch; the row holds the sums of all blocks and the loss behind them."""
        sizes = list(map(Tensor.numel, grads))
        if self._layout is None or self._layout.sizes != sizes:
            self._layout = Layout.of(sizes, self._device)
            self._uploaded = []
            self._addresses = torch.empty(len(sizes), dtype=torch.int64, device=self._device)
        layout = self._layout
        row = torch.empty(layout.blocks + 1, dtype=torch.float64, device=self._device)
        kernel = _kernel()
        kernel[(layout.blocks + (loss is not None),)](
            self._addressed(list(map(Tensor.data_ptr, grads))),
            *layout.on_device,
            row,
            flag,
            loss if loss is not None else flag,
            layout.blocks,
            DTYPE=_triton_dtype(grads[0].dtype),
            DECIDES=loss_decides,
            CHUNK=_CHUNK,
            CHUNKS=_CHUNKS,
            num_warps=8,
        )
        return row, layout

    def _addressed(self, addresses: list[int]) -> Tensor:
        """The gradients' addresses on the device; most loops allocate them anew each step."""
        if addresses != self._uploaded:
            pinned, view, event = self._table(len(addresses))
            view[:] = addresses
            self._addresses.copy_(pinned, non_blocking=True)
            event.record()
            self._uploaded = addresses
        return self._addresses

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


def usable(grads: Sequence[Tensor]) -> bool:
    """Whether the kernel can read these: one dtype, one device, memory without holes."""
    first = grads[0]
    if not first.is_cuda or first.dtype not in _DTYPES or _kernel() is None:
        return False
    return (
        all(map(Tensor.is_contiguous, grads))
        and len({g.dtype for g in grads}) == 1
        and len({g.device for g in grads}) == 1
    )


_DTYPES = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float64: "float64",
}


def _triton_dtype(dtype: torch.dtype) -> Any:
    import triton.language as tl  # pyright: ignore[reportMissingImports]

    return getattr(tl, _DTYPES[dtype])


@functools.cache
def _kernel() -> Any:
    try:
        import triton  # pyright: ignore[reportMissingImports]
        import triton.language as tl  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None

    @triton.jit
    def measure(
        addresses,
        sizes,
        owner,
        offset,
        row,
        flag,
        loss,
        blocks,
        DTYPE: tl.constexpr,
        DECIDES: tl.constexpr,
        CHUNK: tl.constexpr,
        CHUNKS: tl.constexpr,
    ):
        block = tl.program_id(0)
        if block < blocks:
            which = tl.load(owner + block)
            start = tl.load(offset + block)
            size = tl.load(sizes + which)
            of = tl.load(addresses + which).to(tl.pointer_type(DTYPE))
            total = tl.zeros([CHUNK], tl.float64)
            for i in range(CHUNKS):
                at = start + i * CHUNK + tl.arange(0, CHUNK)
                value = tl.load(of + at, mask=at < size, other=0.0).to(tl.float64)
                total += value * value
            found = tl.sum(total)
            tl.store(row + block, found)
            if not (found < float("inf")):
                tl.store(flag, 1.0)
        else:
            found = tl.load(loss).to(tl.float64)
            tl.store(row + block, found)
            if DECIDES and not (tl.abs(found) < float("inf")):
                tl.store(flag, 1.0)

    return measure
