"""What a run died of, where that was memory: the arithmetic, and state that was not detached."""

from __future__ import annotations

import re
import sys
from types import TracebackType
from typing import Any

import torch

from ..exams._growers import habits
from ..exams._place import kind_of, place_told
from ..exams.census import Held
from .roster import Roster

_MEMORY = re.compile(r"out of memory|can't allocate memory|not enough memory", re.I)
_ASKED = re.compile(r"allocate ([\d.]+) (bytes|[KMGT]iB)", re.I)
_UNITS = {"bytes": 0, "kib": 1, "mib": 2, "gib": 3, "tib": 4}
_SECOND_TIME = ("through the graph a second time", "modified by an inplace operation")


def error() -> BaseException | None:
    """The error that ends the script, if one does."""
    found = getattr(sys, "last_value", None)
    return found if isinstance(found, BaseException) else None


def ran_out(found: BaseException | None) -> bool:
    """Whether it is one of memory."""
    if isinstance(found, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(found, RuntimeError) and bool(_MEMORY.search(str(found)))


def second_time(found: BaseException | None) -> bool:
    """Whether backward met a graph of an earlier step."""
    return isinstance(found, RuntimeError) and any(w in str(found) for w in _SECOND_TIME)


def arithmetic(found: BaseException, roster: Roster) -> dict[str, Any]:
    """What the memory was needed for, as far as anybody knows."""
    parts = {"weights": 0, "gradients": 0, "optimizer state": 0}
    weights: dict[str, int] = {}
    for optimizer, guard in roster.all():
        tensors = [p for group in optimizer.param_groups for p in group["params"]]
        for name, p in zip(guard.layers, tensors, strict=False):
            size = p.numel() * p.element_size()
            parts["weights"] += size
            module = name.rpartition(".")[0] or name
            weights[module] = weights.get(module, 0) + size
            if p.grad is not None:
                parts["gradients"] += p.grad.numel() * p.grad.element_size()
            state = optimizer.state.get(p, {})
            parts["optimizer state"] += sum(
                v.numel() * v.element_size() for v in state.values() if torch.is_tensor(v)
            )
    if torch.cuda.is_initialized():
        rest = torch.cuda.max_memory_allocated() - sum(parts.values())
        parts["activations and others"] = max(0, rest)
    asked = _ASKED.search(str(found))
    facts: dict[str, Any] = {"parts": parts, "killed": True, "seen": "trace"}
    if asked is not None:
        facts["asked"] = float(asked[1]) * 1024.0 ** _UNITS[asked[2].lower()]
    if weights:
        facts["largest"] = max(weights, key=lambda name: weights[name])
    return facts | _place(found.__traceback__)


def carried(held: Held, age: int) -> dict[str, Any]:
    """The facts of a state that was still on the graph of an earlier step when the run died."""
    file = held.file
    known = habits(file, held.name, held.function)
    lines = known.assigned or known.grows
    return {
        "age": age,
        "steps": age,
        "killed": True,
        "path": held.path,
        "name": held.name,
        "how": held.how,
        "seen": "source" if len(lines) == 1 else "guess",
        **place_told(file, lines[0] if lines else 0),
    }


def _place(traceback: TracebackType | None) -> dict[str, Any]:
    """The innermost line of the user's own code."""
    file, line = "", 0
    while traceback is not None:
        if kind_of(traceback.tb_frame.f_code.co_filename) == "user":
            file, line = traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
        traceback = traceback.tb_next
    return place_told(file, line)
