"""Print a line of holdfast's own on standard error; light, since every command needs it."""

from __future__ import annotations

import sys

from ..harmless import visible_line


def warn(text: str) -> None:
    """``holdfast: `` and the text, as one line without anything that a terminal would act on."""
    print(f"holdfast: {visible_line(text)}", file=sys.stderr, flush=True)
