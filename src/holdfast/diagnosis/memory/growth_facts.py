"""What the records of leaks say of a value: how far it reaches back, what its source does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...records.memory import GraphChain, StoringLine, ValueGrowth
from ...source.contents import keeps_graphs
from ...source.growth import habits, refers_to_itself
from ...source.paths import from_here
from ...source.statements import function_at, statement_at
from ...source.training_calls import training_in
from ..watchpoint import ValueChange
from .code_line import code_line
from .references import CACHED, Held


def of_growth(grown: ValueGrowth, held: Held, pass_steps: int) -> ValueGrowth:
    """Add what the source says of a container or a value that grows.

    Args:
        grown: its numbers.
        held: as the looks found it.
        pass_steps: steps in one pass over the data; 0 where unknown.
    """
    cached = {"tested": True} if type(held.value) is CACHED else {}
    return grown.replace(**_of_name(held) | cached, pass_steps=pass_steps)


def of_chain(
    held: Held, age: int, *, fed: bool, depth: int | None = None, line: StoringLine | None = None
) -> GraphChain:
    """How far back a value reaches, through how many steps, and whether the loss does so by it."""
    found = GraphChain(
        age=age,
        steps=age,
        bytes=0.0,
        fed=fed,
        single=held.how != "item",
        # An item of a tuple is not what the line stores.
        plain=not isinstance(held.owner, tuple) and held.path.count("[") < 2,
        depth=depth,
        **_of_name(held),
    )
    return found if line is None else found.replace(**vars(line))


def of_line(held: Held, changes: Sequence[ValueChange], steps: int = 0) -> StoringLine:
    """The line that makes a value grow: as traced for some steps, else as the source says."""
    itself = [c for c in changes if refers_to_itself(c.file, c.line, held.name)]
    if changes:
        change = (itself or changes)[0]
        often = change.count / steps if steps else math.inf
        return StoringLine(
            itself=bool(itself),
            function=change.function,
            **_kept_from(change.file, change.line, held, often),
            **vars(code_line(change.file, change.line, "trace")),
        )
    known = habits(held.file, held.name, held.function)
    lines = known.grows or known.assigned
    line = lines[0] if lines else 0
    return StoringLine(
        function=function_at(held.file, line),
        **_kept_from(held.file, line, held),
        **vars(code_line(held.file, line, "source" if len(lines) == 1 else "guess")),
    )


def _kept_from(file: str, line: int, held: Held, often: float = math.inf) -> dict[str, bool]:
    """Whether the stored value is needed with its graph, as the source says: then none is cut.

    ``again`` says that the line runs in each step, and once: what is cut within a step is lost for
    its gradients.
    """
    training = training_in((file,))
    found = statement_at(file, line)
    loops = found.loops if found is not None else ()
    once = training.reached_by(loops[-1]) if loops else function_at(file, line) and often <= 1
    return {
        "feeds": (file, line) in training.lines | training.handed,
        "differentiated": held.name in training.inputs,
        "again": bool(once),
        "retains": keeps_graphs(file),
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
        "read": known.read,
    }
