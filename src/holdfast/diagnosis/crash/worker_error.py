"""Facts of an exception in a loader worker, taken there and carried to the main process.

torch sends the text of the traceback alone. The object that carries it is pickled with its
attributes, so the facts travel as one more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .traceback_frames import Call
from .values import Facts

ATTRIBUTE = "_holdfast_facts"


def carry(wrapper: Any, facts: Facts) -> None:
    """Attach the facts to what torch sends; the traceback is in its text anyway."""
    setattr(wrapper, ATTRIBUTE, {k: v for k, v in facts.items() if k != "traceback"})


def noted(calls: Sequence[Call]) -> Facts | None:
    """The facts from the worker whose error these calls raise again; None for any other."""
    for call in reversed(calls):
        if call.function == "reraise":
            found = getattr(call.frame.f_locals.get("self"), ATTRIBUTE, None)
            if isinstance(found, dict):
                return dict[str, Any](found)
    return None
