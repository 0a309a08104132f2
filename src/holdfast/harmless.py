"""Make text from elsewhere harmless to show: the one place for every writer for people.

A run folder may come from somebody else, and so may the text of an exception or the name of a
module. Printed as they are, control characters write to the terminal of whoever reads a report,
marks that reorder text make a line read as another one, and the log of a CI service obeys some
lines as commands.
"""

from __future__ import annotations

import re

# Control characters but tab and newline, marks that reorder or hide text, halves of characters.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
# GitHub obeys "::" at the beginning of a line, blanks or not, and "##[" anywhere; others "##vso[".
_COMMAND = re.compile(r"^[^\S\n]*:(?=:)|##(?=\w*\[)", re.M)


def visible(text: str) -> str:
    """Text in which what would be invisible or turn a line around is named.

    >>> visible("a\\x1b[31m \\u202e b")
    'a⟨U+001B⟩[31m ⟨U+202E⟩ b'
    """
    return _UNSEEN.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text)


def visible_line(text: str) -> str:
    r"""The same on one line: a newline could begin a line that looks like one of ours.

    >>> visible_line("a\r\n::error::b")
    'a⟨U+000D⟩ ::error::b'
    """
    return without_commands(visible(text.replace("\n", " ")))


def without_commands(lines: str) -> str:
    r"""Finished lines of which the log of a CI service obeys none: a blank breaks each command.

    >>> without_commands("a::b\n  ::error::c\nd ##[group]e")
    'a::b\n  : :error::c\nd ## [group]e'
    """
    return _COMMAND.sub(r"\g<0> ", lines)
