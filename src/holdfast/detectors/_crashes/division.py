"""A division by zero: which expression is 0, and what it counts."""

from __future__ import annotations

from ...records.crash import DivisorPart
from .facts import Crash, CrashCause

_INTERVAL = (
    "the interval of a loop that does something every so many steps is 0 where there are fewer "
    "steps than parts: max(1, {code})"
)


def divided(crash: Crash) -> CrashCause:
    """The cause and what to do; a mean over nothing is never given a value."""
    divisor = crash.data.divisor
    code, parts = (divisor.code, divisor.parts) if divisor is not None else ("", ())
    empty = next((part for part in parts if part.length == 0), None)
    headline = f"{code} is 0" if code else "the divisor is 0"
    if empty is not None and empty.type == "DataLoader":
        why, advice = _no_batch(empty)
        return CrashCause(headline=f"{headline}: {why}", advice=advice)
    if empty is not None:
        return CrashCause(
            headline=f"{headline}: the {empty.type} is empty",
            advice=f"nothing was put into {empty.name}{crash.origin(empty.name).reported()}, or a "
            "filter keeps nothing: a mean of nothing has no value, so look why it is empty",
        )
    values = [f"{part.name} = {part.value}" for part in parts if part.value is not None]
    values += [f"len({p.name}) = {p.length}" for p in parts if p.length is not None]
    reported = f" ({', '.join(values)})" if values and code not in [p.name for p in parts] else ""
    if divisor is not None and divisor.operator == "Mod" and "//" in code:
        return CrashCause(headline=f"{headline}{reported}", advice=_INTERVAL.format(code=code))
    made = crash.origin(code).reported() if code else ""
    return CrashCause(
        headline=f"{headline}{reported}",
        advice=f"usual are an empty loader or split, a filter that keeps nothing, and a count that "
        f"never rose{made}: look why it is 0; a mean of nothing has no value",
    )


def _no_batch(loader: DivisorPart) -> tuple[str, str]:
    """Why a loader gives no batch, and what to do about it."""
    name, samples, size = loader.name, loader.samples, loader.batch_size
    if samples and size and loader.drop_last:
        return (
            f"{name} gives no batch, it has {samples} samples, batch_size={size} and "
            "drop_last=True",
            f"drop_last throws away the {samples} samples, which are less than one batch: "
            "drop_last=False for an evaluation (there it loses the rest of every other set, too), "
            f"or a batch_size of at most {samples} for training",
        )
    return (
        f"{name} gives no batch, its dataset has {'no' if samples == 0 else 'too few'} samples",
        "look at the split or the filter that it is made from; a mean over no batch has no value",
    )
