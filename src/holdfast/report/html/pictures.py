"""Pictures that a task wrote to the run folder, for the page.

``RUN/pictures/pictures.json`` is a list of ``{"file": NAME, "title": TEXT, "caption": TEXT}``; the
files lie beside it and are PNG. They become part of the page, so there are bounds; what is not a
whole picture, or lies elsewhere, is skipped: a bad picture never prevents a report.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple, cast

from ...regular_files import read_regular
from .. import words
from .elements import Html, tag

FOLDER, LIST = "pictures", "pictures.json"

MOST = 20
"""Pictures on a page."""
MOST_BYTES = 2_000_000
"""Size of one of them."""
_MOST_LIST = 200_000
_TITLE, _CAPTION = 120, 600

_SIGNATURE = b"\x89PNG\r\n\x1a\n"


class Picture(NamedTuple):
    """A picture as it stands on the page."""

    title: str
    caption: str
    data: bytes
    size: tuple[int, int]


def pictures_in(run_folder: Path) -> list[Picture]:
    """The pictures of a run, in the order of its list; those that can be shown."""
    folder = run_folder / FOLDER
    found: list[Picture] = []
    for entry in _listed(folder):
        picture = _picture(folder, entry)
        if picture is not None:
            found.append(picture)
            if len(found) == MOST:
                break
    return found


def picture_html(picture: Picture) -> Html:
    """One picture with its title and what it shows."""
    width, height = picture.size
    source = base64.b64encode(picture.data).decode()
    return tag(
        "figure",
        tag("h3", picture.title),
        tag(
            "img",
            src=f"data:image/png;base64,{source}",
            alt=picture.caption or picture.title,
            width=width,
            height=height,
        ),
        tag("figcaption", picture.caption, class_="note") if picture.caption else None,
        class_="picture",
    )


def _listed(folder: Path) -> list[Any]:
    data = _read(folder, LIST, _MOST_LIST)
    if data is None:
        return []
    try:
        entries = json.loads(data)
    except (ValueError, RecursionError):
        return []
    return cast("list[Any]", entries) if isinstance(entries, list) else []


def _picture(folder: Path, entry: Any) -> Picture | None:
    if not isinstance(entry, dict):
        return None
    fields = cast("dict[str, Any]", entry)
    file, title, caption = (fields.get(key, "") for key in ("file", "title", "caption"))
    if not (isinstance(file, str) and isinstance(title, str) and isinstance(caption, str)):
        return None
    data = _read(folder, file, MOST_BYTES)
    size = None if data is None else _size(data)
    if data is None or size is None:
        return None
    title = words.clip(title or file, _TITLE)
    return Picture(title, words.clip(caption, _CAPTION), data, size)


def _read(folder: Path, name: str, most: int) -> bytes | None:
    """A plain file of the folder that is not too large; a name or a link may not lead outside."""
    try:
        if Path(name).name != name or folder.is_symlink():
            return None
        path = folder / name
        if path.is_symlink() or not path.is_file() or path.stat().st_size > most:
            return None
        return read_regular(path, most)
    except (OSError, ValueError):  # gone meanwhile, not ours to read, or no name at all
        return None


def _size(data: bytes) -> tuple[int, int] | None:
    """Width and height of a PNG whose every part is whole; None for anything else."""
    if not data.startswith(_SIGNATURE):
        return None
    size: tuple[int, int] | None = None
    at = len(_SIGNATURE)
    while at + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        end = at + 12 + length
        if end > len(data):
            return None
        (check,) = struct.unpack_from(">I", data, end - 4)
        if zlib.crc32(data[at + 4 : end - 4]) != check:
            return None
        if size is None:
            if kind != b"IHDR" or length != 13:
                return None
            size = struct.unpack_from(">II", data, at + 8)
        if kind == b"IEND":
            return size if min(size) > 0 else None
        at = end
    return None
