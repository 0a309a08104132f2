"""Samples of unequal size in a batch, and a sample that is shorter than what is cut out of it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .facts import Crash, CrashCause, numbers, whole

# From so many samples on, and with this part of them alike, one size is meant. Guesses.
_FEW, _NEARLY = 4, 0.75
_COLOURS = {1, 3, 4}


def unequal(crash: Crash) -> CrashCause | None:
    """Samples of different sizes in a collate function."""
    shapes = crash.data.shapes or ()
    same = crash.find(r"stack expects each tensor to be equal size|each element in list of batch "
                      r"should be of equal size|Trying to resize storage")  # fmt: skip
    if crash.phase != "loading" or (not same and not shapes):
        return None
    if crash.type not in ("RuntimeError", "ValueError"):
        return None
    field = (crash.data.field or "").replace("sample", "a sample", 1) or "a sample"
    each = ", ".join(f"{count} x {shape}" for shape, count, _ in shapes[:3])
    return CrashCause(
        headline=f"samples of unequal size in a batch{': ' + each if each else ''}"
        + (f", {crash.sample} is the odd one" if crash.sample else ""),
        advice=_of_one_size(field, shapes)
        or f"{field} must have one shape for all: pad in a collate_fn (pad_sequence) for "
        "sequences, resize or crop in the dataset for images (Resize with two numbers: one number "
        "keeps the aspect ratio)",
    )


def _of_one_size(field: str, shapes: Sequence[tuple[str, int, int]]) -> str:
    """What to do where nearly all have one size, so that something already makes it."""
    counts = [(numbers(shape), count) for shape, count, _ in shapes]
    total = sum(count for _, count in counts)
    common, most = max(counts, key=lambda pair: pair[1], default=((), 0))
    odd = [shape for shape, _ in counts if shape != common]
    if total < _FEW or most < _NEARLY * total or any(len(s) != len(common) for s in odd):
        return ""
    at = {i for shape in odd for i, size in enumerate(shape) if size != common[i]}
    if len(at) != 1:
        return ""
    (place,) = at
    size, sizes = common[place], sorted({shape[place] for shape in odd})
    if len(common) == 3 and place == 0 and {size, *sizes} <= _COLOURS:
        return (
            f"{field} has {size} channels in {most} of {total} samples and {sizes[0]} in "
            "others: convert them all, image.convert('RGB') for 3"
        )
    reported = f"{most} of {total} samples have {size} in dimension {place} of {field}"
    if sizes[0] > size:
        return (
            f"{reported} and none has less: something pads to {size} and does not cut what is "
            "longer "
            f"(up to {sizes[-1]} here): cut to {size} there, or make the length larger, in the "
            "model, too; padding the batch in a collate_fn gives the model longer ones"
        )
    if sizes[-1] < size:
        return (
            f"{reported} and none has more: something cuts to {size} and does not pad what is "
            "shorter "
            f"(down to {sizes[0]} here): pad to {size} there, or leave these samples out"
        )
    return ""


def bound(crash: Crash) -> CrashCause | None:
    """A random place in what is shorter than the part that is cut out of it."""
    if not crash.find(
        r"'from' to be less than 'to'|empty range (?:for|in) rand|low >= high|high <= 0"
    ):
        return None
    said = {int(number) for number in re.findall(r"-?\d+", crash.message)}
    for each in crash.data.differences or ():
        names, (left, right) = each.names, map(whole, each.values)
        if (
            left is None
            or right is None
            or left > right
            or (said and not said & {left - right, left - right + 1})
        ):
            continue
        named = f" ({crash.sample})" if crash.sample else ""
        if left == right:
            return CrashCause(
                headline=f"{names[0]} is {left}, as {names[1]}: a random place among 0",
                advice=f"the upper end is left out: use {names[0]} - {names[1]} + 1, which has the "
                "one place there is",
            )
        return CrashCause(
            headline=f"{names[0]} is {left} and less than {names[1]}, {right}",
            advice=f"their difference {left - right} is the upper end of a random place: pad what "
            f"is shorter than {right}{named} before it is cut, or leave it out of the dataset; "
            f"{names[0]} - {names[1]} + 1 allows for equal ones",
        )
    return None
