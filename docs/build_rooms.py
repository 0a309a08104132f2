"""Write who may import whom into the README of each room, from the table of the architecture test.

python docs/build_rooms.py      or: make docs
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "holdfast"
HEADING = "## Imports"
PUBLIC = "holdfast"
"""How the table calls ``__init__.py``, the public names."""


def rooms() -> Iterator[Path]:
    """Every folder of holdfast with code in it; folders within a room belong to the room."""
    for folder in sorted(SRC.iterdir()):
        if any(folder.glob("*.py")):
            yield folder


def imports_of(room: str, allowed: Mapping[str, Set[str]]) -> str:
    """What a room may import and who may import it, in the order of the table."""
    below = [name for name in allowed if name in allowed[room]]
    above = [name for name, names in allowed.items() if room in names]
    lines = [f"May import: {_listed(below)}.", f"May be imported by: {_listed(above)}."]
    return "\n\n".join(lines)


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "no other room"


def with_imports(text: str, room: str, allowed: Mapping[str, Set[str]]) -> str:
    """The README with the section ``Imports`` as the table has it."""
    before = re.split(rf"^{HEADING}$", text, flags=re.MULTILINE)[0].rstrip()
    return f"{before}\n\n{HEADING}\n\n{imports_of(room, allowed)}\n"


def main() -> None:
    """Rewrite the section of every README that is there."""
    sys.path.insert(0, str(ROOT))
    from tests.architecture.test_imports import ALLOWED

    for folder in rooms():
        path = folder / "README.md"
        if not path.exists():
            print(f"{path.relative_to(ROOT)} is missing; write it: what the room is for, its files")
            continue
        text = path.read_text()
        made = with_imports(text, folder.name, ALLOWED)
        if made != text:
            path.write_text(made)
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
