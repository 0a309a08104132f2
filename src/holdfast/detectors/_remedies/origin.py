"""Rules for faults without a bad operation: bad weights, a bad batch, or unknown."""

from __future__ import annotations

from .cause import Cause, Stat
from .prescription import Remedy, prescribe

# Inputs above this in forward mean that training diverged; a guess.
_HUGE = 1e6


def parameter(cause: Cause) -> Remedy:
    """A weight is non-finite before anything is computed."""
    name = cause.layer or "a parameter"
    stat = cause.output or (cause.inputs[0] if cause.inputs else Stat())
    kind = "NaN" if stat.nan or not stat.inf else "inf"
    some = f" in {stat.bad} of {stat.numel} values" if stat.bad and stat.numel > 1 else ""
    return prescribe(
        cause,
        f"{name} is {kind}{some}",
        "no later step can repair a weight: initialise all of it (torch.empty holds whatever was "
        "in memory), or load a checkpoint from before it became bad",
        0.95,
    )


def batch(cause: Cause) -> Remedy:
    """The batch is non-finite before anything is computed."""
    known = cause.sample is not None
    what = f"sample {cause.sample}" if known else "a sample"
    bad = next((stat for stat in (cause.output, *cause.inputs) if stat and stat.bad), Stat())
    kind = "NaN" if bad.nan else "inf" if bad.inf else "NaN or inf"
    look = f"look at dataset[{cause.sample!r}]" if known else "search the dataset for it once"
    return prescribe(
        cause,
        f"{what} holds {kind}",
        f"{look} and repair or drop it; if it is finite there, a transform or the collate "
        "function makes it (a division by a deviation of 0, a log of 0)",
        0.95 if known else 0.8,
    )


def already_bad(cause: Cause) -> Remedy | None:
    """NaN went into the operation: it arose earlier."""
    given = (cause.incoming,) if cause.backward else cause.inputs
    at = next((i for i, stat in enumerate(given) if stat.nan), None)
    if at is None:
        return None
    stat = cause.inputs[at]
    if cause.backward:
        what, where = "the incoming gradient was already NaN", "in what comes after it"
    else:
        what = f"input {at + 1} ({_shape(stat)}) was already NaN"
        where = "in what made that input"
        if cause.module and cause.name in ("addmm", "mm", "convolution", "linear") and at:
            where = f"in the weights of {cause.module}, or {where}"
    op = cause.name or "the operation"
    text = f"{what} when {op} got it: look for the cause {where}"
    return prescribe(cause, f"NaN goes into {op}", text, 0.35)


def unknown(cause: Cause) -> Remedy:
    """Fallback without a rule: say so, and quote the recorded values."""
    op = cause.op or "an operation"
    where = f" in {cause.module}" if cause.module else ""
    seen = [f"{_shape(s)} from {s.low:.3g} to {s.high:.3g}" for s in cause.inputs[:3] if s.numel]
    inputs = f" from {', '.join(seen)}" if seen else ""
    largest = max((stat.largest for stat in cause.inputs), default=0.0)
    advice = "check these values against its domain"
    if largest > _HUGE:
        advice = "values of this size suggest that training diverged: lower the learning rate"
    elif not seen:
        advice = "look at the division, log, sqrt or exp nearest to this line"
    return prescribe(
        cause,
        f"{op}{where} returned non-finite values"
        if cause.op
        else "non-finite values, location unknown",
        f"{op} made NaN or inf{inputs}, holdfast knows no rule for it: {advice}",
        0.25,
    )


def _shape(stat: Stat) -> str:
    return f"{stat.dtype} [{', '.join(map(str, stat.shape))}]".strip()
