"""What a checkpoint and live objects do not have in common, as one message.

Names are compared before anything is touched: a state is put back whole or not at all.

    >>> print(differences({"w": ("float32", (3, 4))}, {"w": ("float32", (3, 5))}).message())
    1 tensor not alike:
      w: float32 [3, 4] in the checkpoint, float32 [3, 5] in the live state
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Form = tuple[Any, Sequence[int]]
"""A dtype (or its name) and a shape."""

SHOWN = 12
"""Of each kind so many are named; the rest is counted."""


@dataclass(frozen=True, slots=True)
class Differences:
    """Where a saved state and a live one differ; false when they do not.

    ``missing`` names tensors that live objects have and the saved state has not,
    ``unexpected`` those that only the saved state has, ``differing`` those of another dtype
    or shape, as name, saved form and live form.
    """

    missing: tuple[tuple[str, str], ...] = ()
    unexpected: tuple[tuple[str, str], ...] = ()
    differing: tuple[tuple[str, str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.differing)

    def message(self, *, saved: str = "the checkpoint", live: str = "the live state") -> str:
        """Every kind with its first names; ``saved`` and ``live`` are what the sides are called."""
        lines: list[str] = []
        for found, one, other in ((self.missing, live, saved), (self.unexpected, saved, live)):
            if found:
                lines += [f"{_count(found)} missing from {other}, only in {one}:"]
                lines += _listed(f"{name}: {form}" for name, form in found)
        if self.differing:
            lines += [f"{_count(self.differing)} not alike:"]
            lines += _listed(f"{n}: {a} in {saved}, {b} in {live}" for n, a, b in self.differing)
        return "\n".join(lines) or "no differences"


def differences(saved: Mapping[str, Form], live: Mapping[str, Form]) -> Differences:
    """Compare names, dtypes and shapes of the tensors of two states."""
    both = [(name, describe(saved[name]), describe(live[name])) for name in live if name in saved]
    return Differences(
        missing=tuple((name, describe(form)) for name, form in live.items() if name not in saved),
        unexpected=tuple(
            (name, describe(form)) for name, form in saved.items() if name not in live
        ),
        differing=tuple(one for one in both if one[1] != one[2]),
    )


def describe(form: Form) -> str:
    """A dtype and a shape as one reads them: ``float32 [3, 4]``."""
    dtype, shape = form
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"


def _count(found: Sequence[Any]) -> str:
    return f"{len(found)} {'tensor' if len(found) == 1 else 'tensors'}"


def _listed(lines: Iterable[str]) -> list[str]:
    every = list(lines)
    shown = [f"  {line}" for line in every[:SHOWN]]
    return shown + [f"  and {len(every) - SHOWN} more"] * (len(every) > SHOWN)
