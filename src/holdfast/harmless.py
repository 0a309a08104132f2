"""Make text from elsewhere harmless to show: the one place for every writer for people.

A run folder may come from somebody else, and so may the text of an exception or the name of a
module. Printed as they are, control characters write to the terminal of whoever reads a report,
and marks that reorder text make a line read as another one.
"""

from __future__ import annotations

import re

# Control characters but tab and newline, marks that reorder or hide text, halves of characters.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


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
    return visible(text.replace("\n", " "))
