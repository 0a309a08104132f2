"""Pictures of a run or a folder: PNG and PDF, and the list that the report shows them by.

A picture that cannot be drawn never stops anything: its traceback is kept beside the others, and it
is counted.
"""

from __future__ import annotations

import importlib.util
import json
import os
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast import HoldfastError

if TYPE_CHECKING:
    from ...drawing import Drawn


FOLDER, LIST, FAILURES = "pictures", "pictures.json", "failed_pictures.txt"
_DOTS_PER_INCH = 120

Maker = Callable[[], "Drawn | Iterable[Drawn]"]
"""Draws one picture, or some that belong together."""


class WrittenFigures(NamedTuple):
    """What was written, and what could not be drawn."""

    files: tuple[Path, ...]
    failed: tuple[str, ...]
    """A line for each: its name and the error."""


def need_matplotlib() -> None:
    """Refuse in one line where there is no matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        raise HoldfastError(
            'no pictures: matplotlib is not installed; pip install "holdfast-models[xec]"'
        )


def write_pictures(
    folder: str | os.PathLike[str], makers: Mapping[str, Maker], *, suffix: str = ""
) -> WrittenFigures:
    """Draw and write what can be drawn; never raises because of a picture.

    Args:
        folder: made if need be; that of a run is ``RUN/pictures``.
        makers: by a name for what fails.
        suffix: of every name, such as ``_ep7``. The list names the latest version of each picture,
            whatever its suffix, and keeps the others that it had.
    """
    need_matplotlib()
    from ...drawing import Drawn

    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    failed: list[str] = []
    listed = {entry["name"]: entry for entry in _listed(path / LIST)}
    for name, make in makers.items():
        try:
            made = make()
            for drawn in (made,) if isinstance(made, Drawn) else made:
                files += _write(path, drawn, suffix)
                if "/" not in drawn.name:  # the report shows what lies in the folder itself
                    listed[drawn.name] = {
                        "name": drawn.name,
                        "file": f"{drawn.name}{suffix}.png",
                        "title": drawn.title,
                        "caption": drawn.caption,
                    }
        except Exception as error:
            failed.append(f"{name}{suffix}: {type(error).__name__}: {error}")
            with (path / FAILURES).open("a", encoding="utf-8") as file:
                file.write(f"{name}{suffix}\n{traceback.format_exc()}\n")
    # Last: the list never names a picture that is not there yet.
    text = json.dumps(list(listed.values()), indent=2)
    (path / LIST).write_text(text + "\n", encoding="utf-8")
    return WrittenFigures(tuple(files), tuple(failed))


def _write(folder: Path, drawn: Drawn, suffix: str) -> list[Path]:
    path = folder / f"{drawn.name}{suffix}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    # No name of a program and no date inside: the same rows make the same bytes.
    drawn.figure.savefig(path, dpi=_DOTS_PER_INCH, metadata={"Software": None})
    drawn.figure.set_layout_engine("none")  # is laid out: doing it again takes seconds
    pdf = path.with_suffix(".pdf")
    drawn.figure.savefig(pdf, metadata={"Creator": None, "Producer": None, "CreationDate": None})
    return [path, pdf]


def _listed(path: Path) -> list[dict[str, Any]]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [one for one in entries if isinstance(one, dict) and "name" in one]
