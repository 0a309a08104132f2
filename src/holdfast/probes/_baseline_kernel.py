"""``device_baseline.judge`` as a Triton function: one program, called by the kernel that measures
the gradients when its last block is done, or launched alone after the user's own clipping.

Limits and terms come from a small vector on the device, so that nothing is compiled again when a
setting changes.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from .baseline import (
    ALONE,
    APART,
    AT_START,
    CLIP,
    EVENTS,
    FORGOTTEN,
    HIGHER,
    OF_LOSS,
    SKIPS,
    TO_SIGMA,
    TOGETHER,
    WINDOW,
)
from .device_baseline import (
    ANSWERS,
    HEAD,
    JudgedStep,
    Terms,
)

USUAL = 6
"""Numbers of the baseline."""


class TermsOnDevice:
    """The vector of limits and terms, made again only when terms change."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: dict[tuple[Terms, bool], Tensor] = {}

    def of(self, asked: JudgedStep) -> Tensor:
        """The vector for a question."""
        if asked.vector is not None:
            return asked.vector
        key = asked.terms, asked.scale is not None
        known = self._known.get(key)
        if known is None:
            terms = asked.terms
            values = [*ALONE, *TOGETHER, *OF_LOSS, *CLIP, AT_START, TO_SIGMA, SKIPS]
            values += [terms.warmup, terms.loss_counts, terms.norm_counts, terms.may_skip]
            values += [terms.adaptive, terms.clip, key[1], EVENTS, APART, FORGOTTEN, HIGHER]
            here = torch.tensor(values, dtype=torch.float64).pin_memory()
            known = self._known[key] = here.to(self._device, non_blocking=True)
        asked.vector = known
        return known


class JudgeAlone:
    """Judges norms that have been measured before."""

    def __init__(self, device: torch.device) -> None:
        self._terms = TermsOnDevice(device)
        self._device = device

    def judge(
        self, asked: JudgedStep, square: Tensor, loss: Tensor | None, flag: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The answer, and as fp32 the factor for the gradients beside the bits of an outlier."""
        answer = torch.empty(ANSWERS, dtype=torch.float64, device=self._device)
        factor = torch.empty(2, dtype=torch.float32, device=self._device)
        judge_kernel()[(1,)](
            square,
            square if loss is None else loss,
            flag if asked.scale is None else asked.scale,
            asked.state,
            self._terms.of(asked),
            torch.empty(USUAL, dtype=torch.float64, device=self._device),
            answer,
            flag,
            factor,
            HAS_LOSS=loss is not None,
            HEAD=HEAD,
            WINDOW=WINDOW,
            num_warps=4,
        )
        return answer, factor


@functools.cache
def judge_kernel() -> Any:
    """A launch of its own."""
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as tl  # pyright: ignore[reportMissingImports]

    is_ordinary, judge = ordinary_function(), judge_function()

    @triton.jit
    def alone(
        square,
        loss,
        scale,
        state,
        terms,
        known,
        answer,
        flag,
        factor,
        HAS_LOSS: tl.constexpr,
        HEAD: tl.constexpr,
        WINDOW: tl.constexpr,
    ):
        value = tl.load(square) * 0.0
        if HAS_LOSS:
            value = tl.load(loss).to(tl.float64)
        is_ordinary(state, terms, known, HEAD, WINDOW)
        tl.debug_barrier()
        judge(
            tl.load(square),
            value,
            HAS_LOSS,
            scale,
            state,
            terms,
            known,
            answer,
            flag,
            factor,
            HEAD,
            WINDOW,
        )

    return alone


@functools.cache
def ordinary_function() -> Any:
    """Middle, spread and largest excursion of norms and losses, for a kernel to call.

    It depends on earlier steps only: the kernel that measures gradients has one program do it
    while the others read, because it takes nearly as long as reading half a gigabyte.
    """
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as tl  # pyright: ignore[reportMissingImports]

    @triton.jit
    def middle_of(values, there, filled, at):
        """The lower median: the value that half of the others are below."""
        below = values[None, :] < values[:, None]
        same = (values[None, :] == values[:, None]) & (at[None, :] < at[:, None])
        rank = tl.sum(((below | same) & there[None, :]).to(tl.int32), axis=1)
        half = ((tl.maximum(filled, 1.0) - 1.0) / 2.0).to(tl.int32)
        return tl.sum(tl.where((rank == half) & there, values, 0.0))

    @triton.jit
    def is_ordinary(state, terms, known, HEAD: tl.constexpr, WINDOW: tl.constexpr):
        at = tl.arange(0, WINDOW)
        for series in tl.static_range(2):  # norms, losses
            filled = tl.minimum(tl.load(state + series), WINDOW * 1.0)
            there = at < filled
            values = tl.load(state + HEAD + series * WINDOW + at)
            middle = middle_of(values, there, filled, at)
            off = middle_of(tl.abs(values - middle), there, filled, at)
            top = tl.max(tl.where(there, values, -float("inf")))
            tl.store(known + 3 * series, middle)
            tl.store(known + 3 * series + 1, tl.load(terms + 13) * off)
            tl.store(known + 3 * series + 2, top - middle)

    return is_ordinary


@functools.cache
def judge_function() -> Any:
    """The judgement itself, given the baseline, for a kernel to call; returns the flag."""
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as tl  # pyright: ignore[reportMissingImports]

    @triton.jit
    def judge(
        square,
        value,
        HAS_LOSS: tl.constexpr,
        scale,
        state,
        terms,
        known,
        answer,
        flag,
        factor,
        HEAD: tl.constexpr,
        WINDOW: tl.constexpr,
    ):
        inf = float("inf")
        # Another program may have written these.
        n_mid = tl.load(known, volatile=True)
        n_sigma = tl.load(known + 1, volatile=True)
        n_top = tl.load(known + 2, volatile=True)
        l_mid = tl.load(known + 3, volatile=True)
        l_sigma = tl.load(known + 4, volatile=True)
        l_top = tl.load(known + 5, volatile=True)
        if tl.load(terms + 21) > 0:
            by = tl.load(scale).to(tl.float64)
            square = square / (by * by)
        size = 0.5 * tl.log2(square)
        raised = tl.load(flag)
        usable = (raised == 0.0) & (tl.abs(size) < inf)
        warmup = tl.load(terms + 15)

        l_count = tl.load(state + 1)
        l_ready = l_count >= warmup
        start = tl.load(state + 3)
        start = tl.where((start == 0.0) & l_ready, tl.abs(l_mid) + l_sigma, start)
        rise = tl.maximum(tl.load(terms + 6) * l_sigma, tl.load(terms + 7) * l_top)
        rise = tl.maximum(rise, tl.load(terms + 8) * tl.abs(l_mid))
        l_limit = l_mid + tl.maximum(rise, tl.load(terms + 12) * start)
        finite = (tl.abs(value) < inf) & HAS_LOSS
        high = l_ready & finite & (value > l_limit) & usable

        n_count = tl.load(state)
        n_ready = n_count >= warmup
        rise = tl.maximum(tl.load(terms) * n_sigma, tl.load(terms + 1) * n_top)
        n_limit = n_mid + tl.maximum(rise, tl.load(terms + 2))
        rise = tl.maximum(tl.load(terms + 3) * n_sigma, tl.load(terms + 4) * n_top)
        together = n_mid + tl.maximum(rise, tl.load(terms + 5))
        newest = tl.maximum(n_count - 1.0, 0.0)
        newest = (newest - tl.floor(newest / WINDOW) * WINDOW).to(tl.int32)
        leaps = size > tl.load(state + HEAD + newest) + tl.load(terms + 2)
        alone = (size > n_limit) & leaps & (tl.load(terms + 17) > 0)
        counts = high & (tl.load(terms + 16) > 0)
        extreme = n_ready & usable & (size > together) & (alone | counts)

        in_event = tl.load(state + 2)
        events = tl.load(state + 4)
        since = tl.load(state + 5) + usable.to(tl.float64)
        top = tl.load(state + 6)
        earlier = tl.load(state + 7)
        begins = extreme & ((since > tl.load(terms + 23)) | (events == 0.0))
        forgotten = (since > tl.load(terms + 24)) | (events == 0.0)
        events = tl.where(begins, tl.where(forgotten, 1.0, events + 1.0), events)
        before = tl.where(events == 1.0, 0.0, tl.maximum(earlier, top))
        earlier = tl.where(begins, before, earlier)
        height = size - n_mid
        in_event = tl.where(extreme, tl.where(begins, 1.0, in_event + 1.0), in_event)
        top = tl.where(extreme, tl.where(begins, height, tl.maximum(top, height)), top)
        since = tl.where(extreme, 0.0, since)
        new = (events <= tl.load(terms + 22)) | (height > earlier + tl.load(terms + 25))
        out = extreme & new & (in_event <= tl.load(terms + 14)) & (tl.load(terms + 18) > 0)
        if out:
            tl.store(flag, 1.0)

        keep = usable & (out == 0)
        if keep:
            place = (n_count - tl.floor(n_count / WINDOW) * WINDOW).to(tl.int32)
            tl.store(state + HEAD + place, size)
            tl.store(state, n_count + 1.0)
        if keep & finite & (high == 0):
            place = (l_count - tl.floor(l_count / WINDOW) * WINDOW).to(tl.int32)
            tl.store(state + HEAD + WINDOW + place, value)
            tl.store(state + 1, l_count + 1.0)
        tl.store(state + 2, in_event)
        tl.store(state + 3, start)
        tl.store(state + 4, events)
        tl.store(state + 5, since)
        tl.store(state + 6, top)
        tl.store(state + 7, earlier)

        rise = tl.maximum(tl.load(terms + 9) * n_sigma, tl.load(terms + 11))
        most = tl.where(n_ready & (tl.load(terms + 19) > 0), tl.exp2(n_mid + rise), inf)
        most = tl.minimum(most, tl.load(terms + 20))
        by = tl.where(keep, tl.minimum(most / (tl.exp2(size) + 1e-6), 1.0), 1.0)
        tl.store(factor, by.to(tl.float32))
        nan = float("nan")
        tl.store(answer, tl.where(l_ready, l_mid, nan))
        tl.store(answer + 1, tl.where(l_ready, l_limit, nan))
        tl.store(answer + 2, tl.where(n_ready, tl.exp2(n_mid), nan))
        tl.store(answer + 3, tl.where(n_ready, tl.exp2(n_limit), nan))
        bits = extreme.to(tl.float64) + 2.0 * high.to(tl.float64) + 4.0 * out.to(tl.float64)
        tl.store(answer + 4, bits)
        tl.store(factor + 1, bits.to(tl.float32))
        tl.store(answer + 5, by)
        return tl.where(out, 1.0, raised)

    return judge
