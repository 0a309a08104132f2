"""Data of a ``growth`` event: numbers, and what the source does with the value."""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import Any

from torch import nn

from ..source.growers import fed_to, habits, refers_to_itself
from ..source.loops import function_at, loop_of
from ..source.place import from_here, place_told, user_frames
from ..watchpoint import Change
from .holders import CACHED, Held


def of_growth(held: Held, pass_steps: int) -> dict[str, Any]:
    """What is known about a container or a value that grows, besides its numbers.

    Args:
        held: as the looks found it.
        pass_steps: steps in one pass over the data; 0 where unknown.
    """
    value = held.value
    cached = {"hits": value.cache_info().hits} if type(value) is CACHED else {}
    known = {"pass_steps": pass_steps, "new_keys": _keys_never_return(value)}
    return known | cached | _of_name(held)


def of_chain(held: Held, age: int, *, fed: bool) -> dict[str, Any]:
    """How far back a value reaches, and whether the loss does so through it."""
    return {"age": age, "steps": age, "bytes": 0.0, "fed": fed} | _of_name(held)


def of_line(held: Held, changes: Sequence[Change]) -> dict[str, Any]:
    """The line that makes a value grow: as traced, else as the source says."""
    itself = [c for c in changes if refers_to_itself(c.file, c.line, held.name)]
    if changes:
        change = (itself or changes)[0]
        return {
            "seen": "trace",
            "itself": bool(itself),
            "through_model": _through_a_model(held, change),
            "function": change.function,
            **place_told(change.file, change.line),
        }
    known = habits(held.file, held.name, held.function)
    lines = known.grows or known.assigned
    line = lines[0] if lines else 0
    return {
        "seen": "source" if len(lines) == 1 else "guess",
        "function": function_at(held.file, line),
        **place_told(held.file, line),
    }


def _of_name(held: Held) -> dict[str, Any]:
    known = habits(held.file, held.name, held.function)
    return {
        "path": held.path,
        "name": held.name,
        "how": held.how,
        "scope": f"{from_here(held.file)}:{held.scope.rpartition(':')[2]}",
        "capped": known.capped,
        "shrinks": known.shrinks,
        "tested": known.tested,
        "consumed": known.consumed,
        "detached": known.detached,
        "renewed": _renewed(held),
    }


def _through_a_model(held: Held, change: Change) -> bool:
    """Whether a model makes the new value of the old one: a state, also where no loss uses it."""
    owner = held.owner
    known = {**owner.f_globals, **owner.f_locals} if isinstance(owner, FrameType) else {}
    for callee in fed_to(change.file, change.line, held.name):
        root, *path = callee.split(".")
        value: Any = owner if root == "self" and root not in known else known.get(root)
        for attribute in path:
            value = getattr(value, attribute, None)
        whose = value if root == "self" else getattr(value, "__self__", value)
        if isinstance(whose, nn.Module):
            return True
    return False


def _renewed(held: Held) -> bool:
    """Whether a local variable belongs to a function that is called again and again."""
    if held.how != "local" or not isinstance(held.owner, FrameType):
        return False
    above = user_frames(held.owner.f_back)
    return any(loop_of(at.f_code.co_filename, at.f_lineno)[0] for at in above)


def _keys_never_return(value: Any) -> bool:
    """Whether the keys of a dictionary can never be met again: tensors, for example."""
    if not isinstance(value, dict) or not value:
        return False
    last: Any = next(reversed(value))
    return type(last).__hash__ is object.__hash__ or hasattr(last, "grad_fn")
