"""One HTML file: head, style sheet, script and footer around what a page shows.

The page loads nothing and sends nothing: its policy allows the one style sheet and the one script
in it, by their digests, and pictures that are part of it.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from ... import __version__
from .chart import mark_shapes
from .elements import Html, tag

_SYMBOLS = {
    "good": "M5 12.5l4.5 4.5L19 7.5",
    "info": "M12 7v6l4 2.5",
    "warn": "M12 6.5v7M12 17v.5",
    "bad": "M7.5 7.5l9 9M16.5 7.5l-9 9",
}


def document(title: str, header: Html, main: Html, source: str) -> str:
    """The whole file.

    Args:
        title: of the window.
        header: the verdict.
        main: everything else.
        source: what it was made from, for the footer.
    """
    style, script = _own("page.css"), _own("page.js")
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", style),
    )
    body = tag(
        "body",
        mark_shapes(),
        header,
        main,
        tag("footer", tag("p", f"Made by holdfast {__version__} {source}")),
        tag("script", script),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def symbol(tone: str) -> Html:
    """The sign before a verdict."""
    return tag(
        "svg", tag("circle", cx="12", cy="12", r="11"), tag("path", d=_SYMBOLS[tone]),
        viewBox="0 0 24 24", class_="symbol", aria_hidden="true",
    )  # fmt: skip


def _own(name: str) -> Html:
    return Html(files(__package__ or "").joinpath(name).read_text(encoding="utf-8"))


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
