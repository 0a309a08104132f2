"""One launch after backward: a loss that is not finite reads as the last finite one.

``torch.where`` and its comparison are three launches and as many tensors, in every step. This
kernel copies the loss for the record, then either remembers it or writes the remembered one in its
place. Nothing is compared on the host, and the version of the loss stays as it is. Where backward
was called on what a number has made of the loss, ``loss / 4``, the script's own variable is written
along.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..probes.launch import launcher

# Copies for the record that are made at a time: one allocation for many steps.
_COPIES = 64
_ALONE = (1, 1, 1)

Part = tuple[Tensor, float]
"""A variable that the loss was made of by numbers, and how many times the loss it is."""


class LossWriter:
    """Writes losses of one dtype on one device."""

    def __init__(self, like: Tensor) -> None:
        self._dtype, self._device = like.dtype, like.device
        self._copies: list[Tensor] = []
        # Without and with a part.
        self._launchers: list[Callable[..., object] | None] = [None, None]

    def write(self, loss: Tensor, last: Tensor, part: Part | None = None) -> Tensor:
        """The loss as it was; afterwards both hold the last finite one, if there was any."""
        if not self._copies:
            room = torch.empty(_COPIES, dtype=self._dtype, device=self._device)
            # Handed out in the order of their addresses, from which their mean is taken at once.
            self._copies = list(reversed(room.unbind()))
        copy = self._copies.pop()
        has_part = part is not None
        inner, times = (loss, 1.0) if part is None else part
        start = self._launchers[has_part]
        if start is not None:
            at = loss.data_ptr()
            of_part = inner.data_ptr() if has_part else at
            start(at, last.data_ptr(), copy.data_ptr(), of_part, times, has_part)
        else:
            about = loss, last, copy, inner, times
            compiled = _kernel()[_ALONE](*about, HAS_PART=has_part, num_warps=1)
            self._launchers[has_part] = launcher(compiled, _ALONE)
        return copy


def writer_for(loss: Tensor) -> LossWriter | None:
    """One for losses like this; None where it takes plain torch."""
    usable = loss.is_cuda and loss.dtype in _DTYPES and _kernel() is not None
    return LossWriter(loss) if usable else None


_DTYPES = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


@functools.cache
def _kernel() -> Any:
    try:
        import triton  # pyright: ignore[reportMissingImports]
        import triton.language as tl  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None

    @triton.jit
    def write(loss, last, copy, part, times, HAS_PART: tl.constexpr):
        value = tl.load(loss)
        known = tl.load(last)
        tl.store(copy, value)
        if tl.abs(value.to(tl.float64)) < float("inf"):
            tl.store(last, value)
        elif tl.abs(known.to(tl.float64)) < float("inf"):
            tl.store(loss, known)
            if HAS_PART:
                tl.store(part, (known.to(tl.float64) * times).to(known.dtype))

    return write
