"""HTML and SVG, safe by construction: text is escaped unless it was made by ``tag``.

>>> tag("p", "a < b", tag("b", "!"), class_="note", data_step=3)
'<p class="note" data-step="3">a &lt; b<b>!</b></p>'
"""

from __future__ import annotations

import html
from collections.abc import Iterable

from ...harmless import visible
from ..words import shortened

# Characters of one piece of text: a traceback is shorter.
_LONGEST = 20_000
_EMPTY = frozenset(("br", "hr", "img", "meta", "link", "wbr"))


class Html(str):
    """Markup; only ``tag``, ``join`` and the page's own files make it."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]


def tag(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Html:
    """An element. ``class_`` is class, ``data_x`` is data-x; None and False are omitted."""
    shown = "".join(
        f" {_name(key)}" + ("" if value is True else f'="{_value(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _EMPTY:
        return Html(f"<{name}{shown}>")
    return Html(f"<{name}{shown}>{join(*children)}</{name}>")


def join(*children: Child) -> Html:
    """Pieces one behind the other; plain text among them is escaped."""
    return Html("".join(map(_piece, children)))


def prose(text: str) -> Html:
    """A sentence whose code stands between backticks.

    >>> prose("write `a < b` here")
    'write <code>a &lt; b</code> here'
    """
    pieces = text.split("`")
    if len(pieces) % 2 == 0:  # one without its other half: not ours
        return join(text)
    return join(tag("code", piece) if i % 2 else piece for i, piece in enumerate(pieces))


def copied(lines: Iterable[str], title: str = "") -> Html:
    """Lines that are meant to be copied: the page's script puts a button beside them."""
    shown = tag("pre", tag("code", [tag("span", f"{line}\n") for line in lines]), tabindex="0",
                class_="copied")  # fmt: skip
    return join(tag("p", title, class_="note"), shown) if title else shown


def pixels(value: float) -> str:
    """A coordinate, short: a tenth of a unit is less than anybody sees."""
    text = f"{value:.1f}"
    return text[:-2] if text.endswith(".0") else text


def _piece(child: Child) -> str:
    if isinstance(child, Html):
        return child
    if child is None:
        return ""
    if isinstance(child, str | int | float):
        return html.escape(visible(shortened(str(child), _LONGEST)), quote=False)
    return "".join(map(_piece, child))


def _name(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    text = value if isinstance(value, str) else f"{value:.6g}"
    return html.escape(visible(text), quote=True)
