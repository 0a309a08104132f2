"""Reading the user's code: statements, loops, names, excerpts and changes of a line.

The questions that a resume asks of a line are offered here; all others are imported from the file
that answers them.
"""

from .assignments import changed_names
from .liveness import dead_at
from .loops import asks_alone, blocks_around, for_at, in_comprehension, in_handler, loop_at

__all__ = [
    "asks_alone",
    "blocks_around",
    "changed_names",
    "dead_at",
    "for_at",
    "in_comprehension",
    "in_handler",
    "loop_at",
]
