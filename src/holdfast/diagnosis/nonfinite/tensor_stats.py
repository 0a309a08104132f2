"""Statistics of one tensor.

Of a tensor that is spread over ranks only the part of this one is looked at: a rerun runs on one
rank, and the others would not answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ...records.nonfinite import TensorStats
from ...shards import local


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """Exams may wait for the device, also where the script forbids itself to."""
    mode = torch.cuda.get_sync_debug_mode() if torch.cuda.is_initialized() else 0
    if mode:
        torch.cuda.set_sync_debug_mode("default")
    try:
        yield
    finally:
        if mode:
            torch.cuda.set_sync_debug_mode(mode)


@_reading()
def stat(tensor: Tensor) -> TensorStats:
    """Shape, range and counts of zero, negative and non-finite values; reads the device."""
    values = local(tensor).detach()
    if values.is_complex():
        values = torch.view_as_real(values)
    wide = values.double() if values.is_floating_point() else values
    finite = wide[torch.isfinite(wide)] if values.is_floating_point() else wide
    known = finite.numel() > 0 and values.dtype != torch.bool
    return TensorStats(
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        min=finite.min().item() if known else None,
        max=finite.max().item() if known else None,
        mean=finite.double().mean().item() if known else None,
        zeros=int((wide == 0).sum()),
        negative=int((wide < 0).sum()) if known else 0,
        nan=int(torch.isnan(wide).sum()) if values.is_floating_point() else 0,
        inf=int(torch.isinf(wide).sum()) if values.is_floating_point() else 0,
        numel=tensor.numel(),
    )


@_reading()
def bad(tensor: Tensor) -> bool:
    """Whether a floating tensor holds NaN or infinity; the device is read."""
    return not bool(torch.isfinite(local(tensor)).all())


@_reading()
def has_nan(tensor: Tensor) -> bool:
    """Whether a floating tensor holds NaN; the device is read."""
    return bool(torch.isnan(local(tensor)).any())


@_reading()
def rises(tensor: Tensor) -> bool:
    """Whether a tensor holds plus infinity; the device is read."""
    return not tensor.is_complex() and bool(torch.isposinf(local(tensor)).any())


@_reading()
def bad_rows(tensor: Tensor | None, count: int) -> list[int]:
    """Rows with non-finite values, where the first dimension is the batch of ``count``."""
    tensor = None if tensor is None else local(tensor)
    if tensor is None or tensor.dim() == 0 or tensor.shape[0] != count or not count:
        return []
    rows = torch.isfinite(tensor.detach()).reshape(count, -1).all(dim=1)
    return (~rows).nonzero().flatten().tolist()


def tensors(value: Any, depth: int = 0) -> Iterator[Tensor]:
    """The tensors in arguments or results, nested as torch nests them."""
    if isinstance(value, Tensor):
        if value.layout is torch.strided:
            yield value
    elif isinstance(value, (list, tuple)) and depth < 3:
        for part in value:
            yield from tensors(part, depth + 1)
    elif isinstance(value, dict) and depth < 3:
        for part in value.values():
            yield from tensors(part, depth + 1)


def floating(value: Any) -> Iterator[Tensor]:
    """Those that can hold NaN or infinity."""
    return (t for t in tensors(value) if t.is_floating_point() or t.is_complex())
