"""Styled text for one line of a terminal: how wide it is there, cut to a width, with colours.

Six codes and the width of a character are all that the bar needs, so that a training needs no
library for it and has the same bar everywhere.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable
from typing import NamedTuple

_COLOURS = {"green": "32", "yellow": "33"}
_CODES = {"bold": "1", "dim": "2", **_COLOURS}


class Styled(NamedTuple):
    """A piece of a line; ``style`` is one of bold, dim, green, yellow, or empty."""

    text: str
    style: str = ""


def columns(text: str) -> int:
    """How many columns of a terminal a text takes.

    >>> columns("loss"), columns("訓練"), columns("e\N{COMBINING ACUTE ACCENT}")
    (4, 4, 1)
    """
    return len(text) if text.isascii() else sum(map(_columns_of, text))


def cut(text: str, width: int) -> str:
    """The beginning of a text that fits into so many columns.

    >>> cut("訓練", 3)
    '訓'
    """
    while columns(text) > width:
        text = text[:-1]
    return text


def painted(pieces: Iterable[Styled], width: int) -> str:
    """The pieces one after the other with their codes, cut to a width.

    Without colours where ``NO_COLOR`` is set: bold and dim stay.
    """
    plain = bool(os.environ.get("NO_COLOR"))
    shown: list[str] = []
    for text, style in pieces:
        text = cut(text, width)
        width -= columns(text)
        code = "" if plain and style in _COLOURS else _CODES.get(style, "")
        shown.append(f"\x1b[{code}m{text}\x1b[0m" if code and text else text)
    return "".join(shown)


def _columns_of(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf", "Cc"):
        return 0  # drawn over the character before, or not at all
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
