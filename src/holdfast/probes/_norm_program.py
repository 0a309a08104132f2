"""The program on the device that measures gradients, in Triton; there is none without it."""

from __future__ import annotations

import functools
from typing import Any

import torch

from ._baseline_kernel import judge_function, ordinary_function

_DTYPES = {
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float64: "float64",
}


def available(dtype: torch.dtype) -> bool:
    """Whether there is a kernel for gradients of this dtype."""
    return dtype in _DTYPES and kernel() is not None


def triton_dtype(dtype: torch.dtype) -> Any:
    """The same dtype as Triton calls it."""
    import triton.language as tl  # pyright: ignore[reportMissingImports]

    return getattr(tl, _DTYPES[dtype])


@functools.cache
def kernel() -> Any:
    """The program; None without Triton."""
    try:
        import triton  # pyright: ignore[reportMissingImports]
        import triton.language as tl  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None

    is_ordinary, judge = ordinary_function(), judge_function()

    @triton.jit
    def measure(
        addresses,
        sizes,
        owner,
        offset,
        row,
        flag,
        bad_buffers,
        loss,
        blocks,
        buffers_at,
        scale,
        state,
        terms,
        total,
        done,
        factor,
        found_inf,
        pending,
        DTYPE: tl.constexpr,
        DECIDES: tl.constexpr,
        HAS_LOSS: tl.constexpr,
        JUDGED: tl.constexpr,
        SCALED: tl.constexpr,
        CHUNK: tl.constexpr,
        CHUNKS: tl.constexpr,
        HEAD: tl.constexpr,
        WINDOW: tl.constexpr,
    ):
        # The first program computes the baseline, if the step is to be judged.
        block = tl.program_id(0)
        if JUDGED:
            block -= 1
        if block < 0:
            is_ordinary(state, terms, total + 1, HEAD, WINDOW)
        elif block < blocks:
            which = tl.load(owner + block)
            start = tl.load(offset + block)
            size = tl.load(sizes + which)
            of = tl.load(addresses + which).to(tl.pointer_type(DTYPE))
            squares = tl.zeros([CHUNK], tl.float64)
            for i in range(CHUNKS):
                at = start + i * CHUNK + tl.arange(0, CHUNK)
                value = tl.load(of + at, mask=at < size, other=0.0).to(tl.float64)
                squares += value * value
            found = tl.sum(squares)
            tl.store(row + block, found)
            if JUDGED and block < buffers_at:
                tl.atomic_add(total, found)
            if not (found < float("inf")):
                if block < buffers_at:
                    tl.store(flag, 1.0)
                else:
                    tl.store(bad_buffers, 1.0)
        else:
            found = tl.load(loss).to(tl.float64)
            tl.store(row + block, found)
            if DECIDES and not (tl.abs(found) < float("inf")):
                tl.store(flag, 1.0)
        if JUDGED:
            before = tl.atomic_add(done, 1, sem="acq_rel")
            if before == tl.num_programs(0) - 1:
                square = tl.atomic_add(total, 0.0)
                tl.store(total, 0.0)
                tl.store(done, 0)
                value = square * 0.0
                if HAS_LOSS:
                    value = tl.load(loss).to(tl.float64)
                else:
                    tl.store(row + blocks, value)
                answer = row + blocks + 1
                raised = judge(
                    square,
                    value,
                    HAS_LOSS,
                    scale,
                    state,
                    terms,
                    total + 1,
                    answer,
                    flag,
                    factor,
                    HEAD,
                    WINDOW,
                )
                if SCALED:
                    theirs = tl.load(found_inf).to(tl.float64)
                    tl.store(answer + 6, tl.load(scale).to(tl.float64))
                    tl.store(answer + 7, theirs)
                    # A scaler sums over devices, and a fused kernel takes 2.0 for "go on".
                    raised = tl.where(theirs > 0.0, 1.0, raised)
                    tl.store(pending, raised)
                tl.store(pending + 1, 1.0 - raised)

    return measure
