"""One launch after backward: a loss that is not finite reads as the last finite one.

``torch.where`` and its comparison are three launches and as many tensors, in every step. This
kernel copies the loss for the record, then either remembers it or writes the remembered one in its
place. Nothing is compared on the host, and the version of the loss stays as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..probes._launch import launcher

# Copies for the record that are made at a time: one allocation for many steps.
_COPIES = 64
_ALONE = (1, 1, 1)


class LossWriter:
    """Writes losses of one dtype on one device."""

    def __init__(self, like: Tensor) -> None:
        self._dtype, self._device = like.dtype, like.device
        self._copies: list[Tensor] = []
        self._launcher: Callable[..., object] | None = None

    def write(self, loss: Tensor, last: Tensor) -> Tensor:
        """The loss as it was; afterwards both hold the last finite one, if there was any."""
        if not self._copies:
            room = torch.empty(_COPIES, dtype=self._dtype, device=self._device)
            self._copies = list(room.unbind())
        copy = self._copies.pop()
        if self._launcher is not None:
            self._launcher(loss.data_ptr(), last.data_ptr(), copy.data_ptr())
        else:
            compiled = _kernel()[_ALONE](loss, last, copy, num_warps=1)
            self._launcher = launcher(compiled, _ALONE)
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
    def write(loss, last, copy):
        value = tl.load(loss)
        known = tl.load(last)
        tl.store(copy, value)
        if tl.abs(value.to(tl.float64)) < float("inf"):
            tl.store(last, value)
        elif tl.abs(known.to(tl.float64)) < float("inf"):
            tl.store(loss, known)

    return write
