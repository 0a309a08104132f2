"""Patches that an exam of the time orders for a step: who reads numbers out of tensors."""

from __future__ import annotations

import functools
from time import perf_counter
from typing import Any

from ..exams import reads
from ._patch import Function, GetEngine, Patch


def _read(engine_of: GetEngine, original: Function) -> Function:
    name = getattr(original, "__name__", "read")

    @functools.wraps(original)
    def read(*args: Any, **kwargs: Any) -> Any:
        ledger = reads.open_ledger()
        if ledger is None:
            return original(*args, **kwargs)
        began = perf_counter()
        result = original(*args, **kwargs)
        ledger.saw(name, perf_counter() - began)
        return result

    return read


_TENSOR = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__")

PATCHES = (
    *(
        Patch(
            target=f"torch.Tensor.{name}",
            why="which lines read numbers out of tensors, how often and for how long",
            make=_read,
            on_order=True,
        )
        for name in _TENSOR
    ),
    Patch(
        target="torch.cuda.synchronize",
        why="which lines wait for the device",
        make=_read,
        on_order=True,
    ),
)
