"""Open files in variables: which file each is, and where it is read. None is opened here."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Any

from ..refusal import RefusedError
from .nodes import KIND, Node, ref, shown

_MEMORY = io.StringIO, io.BytesIO
_OWN = sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__


def take(value: Any, path: str, knows: Callable[[Any], bool]) -> Node:
    """The node of an open file; ``knows`` says whether its length goes with every checkpoint."""
    own = any(value is one for one in (*_OWN, sys.stdin, sys.stdout, sys.stderr))
    if own or value.closed:
        return ref(value)
    kind = type(value).__name__
    if type(value) in _MEMORY:
        return {KIND: "memory file", "c": kind, "v": value.getvalue(), "n": value.tell()}
    mode, name = str(getattr(value, "mode", "")), getattr(value, "name", None)
    if not knows(value) and not {"w", "x"}.isdisjoint(mode):
        text = "is a file that is opened for writing anew; a resumed run would begin it again"
        raise RefusedError(f"{shown(path)} {text}")
    if not isinstance(name, str | bytes | os.PathLike):
        return ref(value)
    node = {KIND: "file", "c": kind, "p": os.path.realpath(os.fsdecode(name)), "n": -1}
    if value.seekable() and ("r" in mode or "+" in mode):
        node["n"] = _place(value, path)
        if "r" not in mode and node["n"] != os.stat(value.fileno()).st_size:
            raise RefusedError(f"{shown(path)} is a file that is written elsewhere than at its end")
    return node


def _place(value: Any, path: str) -> int:
    try:
        return int(value.tell())
    except OSError:
        text = "is a file that is read by next(), whose place is not known: use readline()"
        raise RefusedError(f"{shown(path)} {text}") from None


def fill(live: Any, node: Node, path: str, value: Any) -> None:
    """Go on with a file that the script has opened, where it was."""
    name = getattr(live, "name", None)
    reported = isinstance(name, str | bytes | os.PathLike)
    here = os.path.realpath(os.fsdecode(name)) if reported else ""
    if not isinstance(live, io.IOBase) or live.closed or here != node["p"]:
        then, now = os.path.basename(str(node["p"])), os.path.basename(here) or "none that is open"
        text = f"is the file {now} when the resumed run comes to its loop, and was {then}"
        raise RefusedError(f"{shown(path)} {text}: open one file before the loop")
    if int(node["n"]) >= 0:
        live.seek(int(node["n"]))


def fill_memory(live: Any, node: Node, path: str, value: Any) -> None:
    """Have a file that is only in memory hold what it held."""
    if type(live) not in _MEMORY or type(live.getvalue()) is not type(node["v"]):
        raise RefusedError(f"{shown(path)} is no {node['c']} in the resumed run")
    live.seek(0)
    live.truncate()
    live.write(node["v"])
    live.seek(int(node["n"]))
