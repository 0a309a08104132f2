"""``Baseline`` where the numbers never leave the device: one launch, or tensors of plain torch.

The state is one fp64 vector: how many norms and losses were accepted, outliers in this event, the
level at the start, how many events there were, steps since the last outlier, how high this event
and those before it went, then both windows. The answer is one too: loss baseline, its limit, norm
baseline, its limit, the bits of an outlier, and the factor for the gradients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

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
    LOSS,
    NORM,
    OF_LOSS,
    SKIP,
    SKIPS,
    TO_SIGMA,
    TOGETHER,
    WINDOW,
    Limits,
)

HEAD = 8
ANSWERS = 6


class Terms(NamedTuple):
    """How steps are to be judged; the same for most of a run.

    ``clip`` is the largest norm that is let through, infinite for any.
    """

    warmup: int
    loss_counts: bool = True
    norm_counts: bool = True
    may_skip: bool = True
    adaptive: bool = False
    clip: float = math.inf


@dataclass(slots=True)
class JudgedStep:
    """One step to be judged.

    ``scale`` is the factor of a GradScaler on the gradients that has not been undone.
    """

    state: Tensor
    terms: Terms
    scale: Tensor | None = None
    vector: Tensor | None = None
    """The terms on the device, once they have been asked for."""


def fresh_state(device: torch.device) -> Tensor:
    """The state of a run of which nothing is known."""
    return torch.zeros(HEAD + 2 * WINDOW, dtype=torch.float64, device=device)


def learn_anew(state: Tensor) -> None:
    """Losses have a new level: forget the old one."""
    state[1:2].zero_()


def judge(asked: JudgedStep, square: Tensor, loss: Tensor | None, flag: Tensor) -> Tensor:
    """The answer, by plain torch; raises ``flag`` where the step is to be skipped.

    Args:
        asked: the question.
        square: sum of the squares of all gradients, fp64.
        loss: the loss, or None.
        flag: 0.0, or 1.0 when the step is bad; fp32.
    """
    state, terms = asked.state, asked.terms
    inf = math.inf
    value = torch.full_like(square, math.nan) if loss is None else loss.double().reshape(())
    if asked.scale is not None:
        square = square / asked.scale.double().reshape(()).square()
    size = 0.5 * torch.log2(square)
    usable = size.isfinite() & (flag.reshape(()) == 0)
    norms, losses = state[HEAD : HEAD + WINDOW], state[HEAD + WINDOW :]
    n_count, l_count = state[0].clone(), state[1].clone()

    l_mid, l_sigma, l_top = _spread(losses, l_count)
    l_ready = l_count >= terms.warmup
    level = l_mid.abs() + l_sigma
    start = torch.where((state[3] == 0) & l_ready, level, state[3])
    least = torch.maximum(OF_LOSS.rise * l_mid.abs(), AT_START * start)
    l_limit = _above(l_mid, l_sigma, l_top, OF_LOSS, least)
    high = l_ready & (value > l_limit) & (value < inf) & usable

    n_mid, n_sigma, n_top = _spread(norms, n_count)
    n_ready = n_count >= terms.warmup
    n_limit = _above(n_mid, n_sigma, n_top, ALONE, ALONE.rise)
    together = _above(n_mid, n_sigma, n_top, TOGETHER, TOGETHER.rise)
    newest = ((n_count - 1) % WINDOW).long().reshape(1)
    before = norms.gather(0, newest).reshape(())
    alone = (size > n_limit) & (size > before + ALONE.rise) & terms.norm_counts
    extreme = n_ready & usable & (size > together) & (alone | (high & terms.loss_counts))

    in_event, events, since, top, earlier = (state[i].clone() for i in (2, 4, 5, 6, 7))
    since = since + usable.double()
    begins = extreme & ((since > APART) | (events == 0))
    forgotten = (since > FORGOTTEN) | (events == 0)
    events = torch.where(begins, torch.where(forgotten, 1.0, events + 1), events)
    past = torch.where(events == 1, 0.0, torch.maximum(earlier, top))
    earlier = torch.where(begins, past, earlier)
    height = size - n_mid
    in_event = torch.where(extreme, torch.where(begins, 1.0, in_event + 1), in_event)
    top = torch.where(extreme, torch.where(begins, height, torch.maximum(top, height)), top)
    since = torch.where(extreme, 0.0, since)
    new = (events <= EVENTS) | (height > earlier + HIGHER)
    out = extreme & new & (in_event <= SKIPS) & terms.may_skip
    flag.copy_(torch.where(out, 1.0, flag.reshape(())).reshape(flag.shape))

    _push(norms, n_count, size, usable & ~out)
    _push(losses, l_count, value, value.isfinite() & usable & ~out & ~high)
    state[0] += (usable & ~out).double()
    state[1] += (value.isfinite() & usable & ~out & ~high).double()
    state[2:HEAD] = torch.stack([in_event, start, events, since, top, earlier])

    clip_at = torch.where(n_ready, _above(n_mid, n_sigma, n_top, CLIP, CLIP.rise), inf)
    norm = torch.exp2(size)
    most = torch.exp2(clip_at) if terms.adaptive else torch.full_like(square, inf)
    most = most.clamp(max=terms.clip)
    factor = torch.where(usable & ~out, (most / (norm + 1e-6)).clamp(max=1.0), 1.0)
    bits = NORM * extreme.double() + LOSS * high.double() + SKIP * out.double()
    nan = torch.full_like(square, math.nan)
    return torch.stack(
        [
            torch.where(l_ready, l_mid, nan),
            torch.where(l_ready, l_limit, nan),
            torch.where(n_ready, torch.exp2(n_mid), nan),
            torch.where(n_ready, torch.exp2(n_limit), nan),
            bits,
            factor,
        ]
    )


def _spread(window: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Median, robust standard deviation and largest excursion of the values there are."""
    filled = count.clamp(max=WINDOW)
    there = torch.arange(WINDOW, device=window.device) < filled
    half = ((filled - 1).clamp(min=0) / 2).long().reshape(1)
    inf = torch.full_like(window, math.inf)
    middle = torch.where(there, window, inf).sort().values.gather(0, half).reshape(())
    away = torch.where(there, (window - middle).abs(), inf)
    sigma = TO_SIGMA * away.sort().values.gather(0, half).reshape(())
    top = torch.where(there, window, -inf).amax() - middle
    return middle, sigma, top


def _above(
    middle: Tensor, sigma: Tensor, top: Tensor, limits: Limits, least: Tensor | float
) -> Tensor:
    rise = torch.maximum(limits.deviations * sigma, limits.excursion * top)
    floor = least if isinstance(least, Tensor) else torch.full_like(rise, least)
    return middle + torch.maximum(rise, floor)


def _push(window: Tensor, count: Tensor, value: Tensor, accepted: Tensor) -> None:
    here = torch.arange(WINDOW, device=window.device) == count % WINDOW
    window.copy_(torch.where(here & accepted, value, window))
