"""Reading the user's code: statements, loops, names, excerpts and changes of a line.

What a resume asks of a line is offered here; all else is imported from the file that answers it.
"""

from .assignments import first_line_of
from .liveness import changed_names, dead_at
from .loops import asks_alone, blocks_around, for_at, in_comprehension, in_handler, loop_at

__all__ = [
    "asks_alone",
    "blocks_around",
    "changed_names",
    "dead_at",
    "first_line_of",
    "for_at",
    "in_comprehension",
    "in_handler",
    "loop_at",
]
