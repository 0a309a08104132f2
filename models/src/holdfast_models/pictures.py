"""Pictures of a run as files: PNG in ``RUN/pictures``, with a list that the report shows them by.

matplotlib is optional: a family calls ``require_matplotlib`` before it imports what draws.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast import HoldfastError

if TYPE_CHECKING:
    from .drawing import Drawn

__all__ = ["FOLDER", "LIST", "require_matplotlib", "write_pictures"]

FOLDER, LIST = "pictures", "pictures.json"

_DOTS_PER_INCH = 110


def require_matplotlib() -> None:
    """Raise a HoldfastError that says how to get it, where it is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise HoldfastError(
            "no pictures: matplotlib is not installed; pip install 'holdfast-models[plots]', "
            "or set pictures=false"
        )


def write_pictures(run_folder: str | os.PathLike[str], drawn: Iterable[Drawn]) -> list[Path]:
    """Write pictures and their list; the files."""
    folder = Path(run_folder) / FOLDER
    folder.mkdir(exist_ok=True)
    files: list[Path] = []
    listed: list[dict[str, str]] = []
    for one in drawn:
        path = folder / f"{one.name}.png"
        # No name of a program inside: the same run makes the same bytes.
        one.figure.savefig(path, dpi=_DOTS_PER_INCH, metadata={"Software": None})
        files.append(path)
        listed.append({"file": path.name, "title": one.title, "caption": one.caption})
    # Last: the list never names a picture that is not there yet.
    (folder / LIST).write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")
    return files
