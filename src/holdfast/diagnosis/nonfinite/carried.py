"""Steps that are bad one after the other: a tensor that lives across steps may carry the NaN on.

A hidden state of a recurrent network that is kept over batches (``h = h.detach()``) stays NaN once
a bad batch has entered it. Every later step is skipped then, and no skip can mend it: it belongs to
the script. So it is looked for by name, once, after a few bad steps in a row.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...records.nonfinite import Cause
from ...source.carried import carried_by_function, carried_by_loop
from ...source.excerpts import excerpt_at
from ...source.frames import forget_locals, user_frames
from ...source.ownership import kind_of
from ...source.paths import from_here

AFTER = 3
"""Bad steps in a row. A choice: two bad batches in a row are not rare in shuffled data."""


def carries(frame: FrameType | None, models: Iterable[nn.Module]) -> Cause | None:
    """The name that carries it, as a cause; None where there is none."""
    for name, value, file, line in (*_of_loops(frame), *_of_modules(models)):
        if _is_bad(value):
            source = excerpt_at(file, line)
            return Cause(
                how="carried",
                phase="carried",
                file=from_here(file),
                line=line,
                code=source.code,
                start=source.start,
                excerpt=source.lines,
                variable=name,
                dtype="tensor" if isinstance(value, Tensor) else "",
            )
    return None


def _of_loops(frame: FrameType | None) -> Iterator[tuple[str, Any, str, int]]:
    for at in user_frames(frame):
        file = at.f_code.co_filename
        for name, line in carried_by_loop(file, at.f_lineno).items():
            owner, _, attribute = name.partition(".")
            value = at.f_locals.get(owner)
            forget_locals(at)
            yield name, getattr(value, attribute, None) if attribute else value, file, line


def _of_modules(models: Iterable[nn.Module]) -> Iterator[tuple[str, Any, str, int]]:
    for module in (part for model in models for part in model.modules()):
        own = {key for key, value in vars(module).items() if isinstance(value, Tensor | tuple)}
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        if not own or code is None or kind_of(code.co_filename) != "user":
            continue
        found = carried_by_function(code.co_filename, code.co_firstlineno)
        for name, line in found.items():
            attribute = name.partition(".")[2]
            if attribute in own:
                yield name, vars(module)[attribute], code.co_filename, line


def _is_bad(value: object) -> bool:
    if isinstance(value, tuple | list):
        return any(map(_is_bad, cast(list[object], value)[:8]))
    if not isinstance(value, Tensor) or isinstance(value, nn.Parameter):
        return False
    real = value.is_cpu and value.is_floating_point() and value.layout is torch.strided
    return real and not bool(value.isfinite().all())
