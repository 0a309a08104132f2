"""Keeps secrets out of checkpoints: a resumed script has them again, from where it has got them.

A text that is surely a secret (its name, or a value of the environment or the command line) is only
named. One that merely looks like one must be what it was, by a salted digest that is slow to guess.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re

from ...redaction import (
    HIDDEN,
    gives_itself_away,
    hides,
    is_surely_secret,
    known_values,
    seems_secret,
)
from .nodes import KIND, Node, last_name

_LONG = 4096
"""Characters. Longer texts are data: only known values are searched for in them."""
_SALT = os.urandom(16)
_KEY = re.compile(r"\[(['\"])(?P<key>.*)\1\]$")


class Secrets:
    """What is known as secret during one look."""

    def __init__(self) -> None:
        self._known = known_values()

    def text(self, value: str | bytes, path: str) -> Node:
        """The node of a text that is found at a path."""
        found = _KEY.search(path)
        return self.named(value, found["key"] if found else last_name(path))

    def named(self, value: str | bytes, name: str) -> Node:
        """The node of a text of that name: itself where it is no secret."""
        text = value if isinstance(value, str) else value.decode("latin-1")
        if text in self._known or (is_surely_secret(name) and hides(name, text)):
            return {KIND: "secret", "h": ""}
        known = any(one in text for one in self._known)
        if known or seems_secret(name, text) or _looks_secret(text):
            return {KIND: "secret", "h": digest(text, _SALT)}
        return value


def without(name: str, value: object) -> object:
    """A plain value of that name for a comparison; no text of a secret."""
    node = Secrets().named(value, name) if isinstance(value, str) else value
    return HIDDEN if isinstance(node, dict) else value


def same(value: object, reported: str) -> bool:
    """Whether a text is the one of which a checkpoint has this digest."""
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    salt, _, _ = reported.partition(":")
    return isinstance(value, str) and digest(value, bytes.fromhex(salt)) == reported


@functools.lru_cache(maxsize=16_384)
def _looks_secret(text: str) -> bool:
    return len(text) <= _LONG and gives_itself_away(text)


@functools.lru_cache(maxsize=1024)
def digest(text: str, salt: bytes) -> str:
    """A digest from which nobody finds the text by trying."""
    made = hashlib.scrypt(text.encode("utf-8", "surrogatepass"), salt=salt, n=1 << 14, r=8, p=1)
    return f"{salt.hex()}:{made.hex()[:32]}"
