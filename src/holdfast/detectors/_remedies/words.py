"""Faults whose repair is said in words: by operation, and those without a bad operation."""

from __future__ import annotations

from collections.abc import Mapping

from ...records.nonfinite import Cause, TensorStats
from .cause import incoming, largest_of, name_of, sample_of
from .overflow import overflow
from .prescription import Remedy, prescribe

_NORMALISED = (
    "{name} of equal values",
    "a variance of 0 (a constant channel, one value per channel) is divided by: give the norm an "
    "eps of 1e-5 and more than one value per channel",
)
_SPREAD = (
    "{name} of one sample",
    "{name} divides by N - 1, here 0 (or nothing was selected): use correction=0, and "
    "drop_last=True in the loader if the last batch holds one sample",
)
_SPREAD_BACKWARD = (
    "{name} of equal values in backward",
    "its derivative at 0 is infinite: use (x.var(correction=0) + 1e-12).sqrt()",
)
# Inputs above this in forward mean that training diverged; a guess.
_HUGE = 1e6
# Headline and text where finite inputs gave NaN.
_FORWARD: Mapping[str, tuple[str, str]] = {
    "mean": (
        "mean of an empty tensor",
        "nothing was selected, and the mean over 0 values is 0 / 0: divide the sum by "
        "max(x.numel(), 1), or skip the term for such a batch",
    ),
    "ctc_loss": (
        "ctc_loss of a target that does not fit",
        "the loss is infinite where a target is longer than the frames it must fit into: pass "
        "zero_infinity=True, or drop such samples",
    ),
    "std": _SPREAD, "var": _SPREAD,
    "layer_norm": _NORMALISED, "group_norm": _NORMALISED, "batch_norm": _NORMALISED,
    "rms_norm": _NORMALISED,
}  # fmt: skip
_BACKWARD: Mapping[str, tuple[str, str]] = {
    "mul": (
        "0 * inf in backward",
        "a gradient of 0 was multiplied by an infinite factor, as masked values are: keep that "
        "factor finite before the product, masking its result is too late",
    ),
    "std": _SPREAD_BACKWARD, "var": _SPREAD_BACKWARD,
    "layer_norm": _NORMALISED, "batch_norm": _NORMALISED,
}  # fmt: skip


def in_words(cause: Cause) -> Remedy | None:
    """What is known of an operation whose inputs were finite."""
    found = (_BACKWARD if cause.backward else _FORWARD).get(name_of(cause))
    output = cause.output or TensorStats()
    if found is None or (not cause.backward and any(stat.bad for stat in cause.inputs)):
        return None
    if name_of(cause) == "mul" and not (incoming(cause).zeros and output.nan):
        return None
    if name_of(cause) in ("mean", "std", "var"):
        # Overflow gives inf, and NaN only out of nothing.
        return _said(cause, found) if output.nan or cause.backward else None
    return overflow(cause) or _said(cause, found)


def _said(cause: Cause, found: tuple[str, str]) -> Remedy:
    headline, text = (part.format(name=name_of(cause)) for part in found)
    return prescribe(cause, headline, text, 0.7)


def parameter(cause: Cause) -> Remedy:
    """A weight is non-finite before anything is computed."""
    name = cause.layer or "a parameter"
    stat = cause.output or (cause.inputs[0] if cause.inputs else TensorStats())
    kind = "NaN" if stat.nan or not stat.inf else "inf"
    some = f" in {stat.bad} of {stat.numel} values" if stat.bad and stat.numel > 1 else ""
    return prescribe(
        cause,
        f"{name} is {kind}{some}",
        "no later step can repair a weight: load a checkpoint from before it became bad and look "
        "at what writes to it; one that is bad from the start on is to be initialised (torch.empty "
        "holds whatever was in memory)",
        0.95,
    )


def batch(cause: Cause) -> Remedy:
    """The batch is non-finite before anything is computed."""
    known = sample_of(cause) is not None
    what = f"sample {sample_of(cause)}" if known else "a sample"
    bad = next((stat for stat in (cause.output, *cause.inputs) if stat and stat.bad), TensorStats())
    kind = "NaN" if bad.nan else "inf" if bad.inf else "NaN or inf"
    if cause.variable and not known:
        return prescribe(
            cause,
            f"{cause.variable} holds {kind} after this line",
            f"print {cause.variable} before it: finite there, the line makes {kind} (a division "
            "by a deviation of 0, a log of 0); bad there already, the data hold it: search them "
            "once and repair or drop the row",
            0.8,
        )
    look = f"look at dataset[{sample_of(cause)!r}]" if known else "search the dataset for it once"
    if cause.columns:
        where = " and ".join(map(str, cause.columns))
        where = f"column{'s' * (len(cause.columns) > 1)} {where}"
        kind += f" in {where}"
        fill = "fill what is missing there (fillna, a mean)"
        if not bad.nan and bad.inf:
            fill = "find what is infinite there (a division by 0, a log of 0)"
        look += f", at {where}: {fill} or drop the column,"
    return prescribe(
        cause,
        f"{what} holds {kind}",
        f"{look} and repair or drop it; if it is finite there, a transform or the collate "
        "function makes it (a division by a deviation of 0, a log of 0)",
        0.95 if known else 0.8,
    )


def carried(cause: Cause) -> Remedy:
    """A tensor of the script keeps it from one step to the next."""
    name = cause.variable or "a tensor"
    came = f" (the first at {cause.origin})" if cause.origin else ""
    new = f"{name} = torch.zeros_like({name})" if cause.dtype else f"start {name} anew"
    return prescribe(
        cause,
        f"{name} carries NaN or inf from step to step",
        f"a bad batch has entered {name}{came}, which every step reads, and skipping a step does "
        f"not take it out again: reset it when it is not finite ({new})",
        0.98,
    )


def already_bad(cause: Cause) -> Remedy | None:
    """NaN went into the operation: it arose earlier."""
    given = (incoming(cause),) if cause.backward else cause.inputs
    at = next((i for i, stat in enumerate(given) if stat.nan), None)
    if at is None:
        return None
    what, where = "the incoming gradient", "in what comes after it"
    if not cause.backward:
        what, where = f"input {at + 1} ({_shape(given[at])})", "in what made that input"
    text = f"{what} was already NaN when {name_of(cause)} got it: look for the cause {where}"
    return prescribe(cause, f"NaN goes into {name_of(cause)}", text, 0.35)


def already_infinite(cause: Cause) -> Remedy | None:
    """An infinity went into the operation and met a 0 or another infinity."""
    if cause.backward or not any(stat.inf for stat in cause.inputs):
        return None
    return prescribe(
        cause,
        {"mul": "inf * 0", "add": "inf - inf", "sub": "inf - inf"}.get(
            name_of(cause), f"infinity goes into {name_of(cause)}"
        ),
        "an infinite input meets a 0 or another infinity, which gives NaN, and masking the result "
        "is too late: its gradient stays NaN. If values were masked with -inf, put a finite number "
        "in before this operation, x.masked_fill(mask, 0), or mask with torch.finfo(x.dtype).min; "
        "if they overflowed, look at what made them",
        0.6,
    )


def unknown(cause: Cause) -> Remedy:
    """Fallback without a rule: say so, and quote the recorded values."""
    op = cause.op or "an operation"
    where = f" in {cause.module}" if cause.module else ""
    seen = [f"{_shape(s)} from {s.low:.3g} to {s.high:.3g}" for s in cause.inputs[:3] if s.numel]
    inputs = f" from {', '.join(seen)}" if seen else ""
    largest = max((largest_of(stat) for stat in cause.inputs), default=0.0)
    advice = "check these values against its domain"
    if largest > _HUGE:
        advice = "values of this size suggest that training diverged: lower the learning rate"
    elif not seen:
        advice = "look at the division, log, sqrt or exp nearest to this line"
    headline = f"{op}{where} returned non-finite values"
    return prescribe(
        cause,
        headline if cause.op else "non-finite values, location unknown",
        f"{op} made NaN or inf{inputs}, holdfast knows no rule for it: {advice}",
        0.25,
    )


def _shape(stat: TensorStats) -> str:
    return f"{stat.dtype} [{', '.join(map(str, stat.shape))}]".strip()
