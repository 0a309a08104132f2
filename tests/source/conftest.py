"""Scripts to read, and a line of them."""

from __future__ import annotations

import textwrap
from pathlib import Path


def place(tmp_path: Path, text: str, head: str) -> tuple[str, int, int]:
    """File, first line of the scope and the first line with ``head`` of a script with this text."""
    path = tmp_path / f"script{len(list(tmp_path.iterdir()))}.py"  # sources are read once
    path.write_text(textwrap.dedent(text))
    lines = path.read_text().splitlines()
    line = next(n for n, row in enumerate(lines, 1) if head in row)
    function = next((n for n, row in enumerate(lines, 1) if row.startswith("def train")), 0)
    return str(path), function, line
