"""What the terminal of a stream can show: its width, colours, links.

Colours follow the habits of the field: never with ``NO_COLOR``, always with ``FORCE_COLOR``, else
on a terminal that is not dumb. Links (OSC 8) only on terminals that are known to show them, and
never into a pipe or a file, where they would be rubbish between the words.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

NORMAL = 88
"""Columns of a text that no terminal shows."""
# Longer lines are hard to read, however wide the terminal is.
_WIDEST = 100
_NARROWEST = 40
# A terminal that shows links says so in one of these; the values are beginnings, "" for any.
_LINKS = {
    "TERM_PROGRAM": ("iTerm.app", "vscode", "WezTerm", "ghostty", "Hyper", "Tabby", "rio", "zed"),
    "TERM": ("xterm-kitty", "alacritty", "foot", "contour", "xterm-ghostty", "wezterm"),
    "WT_SESSION": ("",),
    "KITTY_WINDOW_ID": ("",),
    "KONSOLE_VERSION": ("",),
    "WEZTERM_PANE": ("",),
}
# GNOME Terminal and its kin, from 0.50 on; tmux hands links on from 3.4 on.
_VTE = 5000
_TMUX = (3, 4)


@dataclass(frozen=True, kw_only=True)
class Terminal:
    """Where lines appear.

    >>> Terminal.of(None, {"FORCE_COLOR": "1"})
    Terminal(there=False, width=88, columns=0, colour=True, links=False)
    """

    there: bool = False
    """Whether a person reads along, between progress bars."""
    width: int = NORMAL
    """Columns of a paragraph, within limits that can be read."""
    columns: int = 0
    """Columns of a table at most; 0 where nothing limits them."""
    colour: bool = False
    links: bool = False

    @classmethod
    def of(cls, stream: Any, environment: Mapping[str, str] | None = None) -> Terminal:
        """The terminal of a stream; its environment is this process's if none is given."""
        environment = os.environ if environment is None else environment
        there = _is_terminal(stream)
        columns = _columns(stream, there, environment)
        return cls(
            there=there,
            width=max(_NARROWEST, min(_WIDEST, columns or NORMAL)),
            columns=columns,
            colour=_colour(there, environment),
            links=there and _links(environment),
        )


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError, OSError):
        return False


def _columns(stream: Any, there: bool, environment: Mapping[str, str]) -> int:
    given = environment.get("COLUMNS", "")
    if given.isdecimal() and 0 < int(given) < 10_000:
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns if there else 0
    except (OSError, ValueError, AttributeError):
        return 0


def _colour(there: bool, environment: Mapping[str, str]) -> bool:
    if environment.get("NO_COLOR"):
        return False
    forced = environment.get("FORCE_COLOR")
    if forced:
        return forced not in ("0", "false")
    return there and environment.get("TERM", "") not in ("dumb", "unknown")


def _links(environment: Mapping[str, str]) -> bool:
    forced = environment.get("FORCE_HYPERLINK")
    if forced:
        return forced != "0"
    if environment.get("TERM") == "dumb" or "CI" in environment:
        return False
    if environment.get("TMUX"):
        said = re.findall(r"\d+", environment.get("TERM_PROGRAM_VERSION", ""))
        known = environment.get("TERM_PROGRAM") == "tmux" and len(said) > 1
        return known and (int(said[0]), int(said[1])) >= _TMUX
    if environment.get("VTE_VERSION", "").isdecimal():
        return int(environment["VTE_VERSION"]) >= _VTE
    return any(
        name in environment and environment[name].startswith(beginnings)
        for name, beginnings in _LINKS.items()
    )
