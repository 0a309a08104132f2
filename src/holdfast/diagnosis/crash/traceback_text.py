"""Tracebacks as text: our own calls hidden, secrets hidden; and read back from a worker's text."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from ...redaction import redact_code, redact_text
from ...source.ownership import is_ours, kind_of
from ...source.paths import cell_of

_LONGEST = 16_000
_ENTRY = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)$')
_WORKER = re.compile(r"^Caught (?P<type>\w+) in (?P<where>.+)\.\s*$", re.M)
_LAST = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")


@dataclass(frozen=True, slots=True)
class Reported:
    """An exception of another process, as its text tells it."""

    type: str
    message: str
    where: str
    """``DataLoader worker process 0``; empty where it is not said."""
    file: str
    line: int
    function: str


def text_of(error: BaseException) -> str:
    """The whole traceback, as python prints it, without our calls."""
    lines = [line for part in traceback.format_exception(error) for line in part.splitlines()]
    text = "\n".join(map(_without_secrets, _without_ours(lines)))
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]}\n…\n{text[-_LONGEST // 2 :]}"
    return text


def _without_secrets(line: str) -> str:
    # Lines of code stand four spaces in, and their names with values are no secrets.
    return redact_code(line) if line.startswith("    ") else redact_text(line)


def reported_by(message: str) -> Reported | None:
    """The exception of another process in the message of this one; None where there is none."""
    head, marker, rest = message.partition("Traceback (most recent call last):")
    if not marker:
        return None
    entry: tuple[str, int, str] = ("", 0, "")
    kind, said = "", ""
    for line in rest.splitlines():
        if found := _ENTRY.match(line):
            kind = ""
            if kind_of(found["file"]) == "user":
                entry = found["file"], int(found["line"]), found["function"]
        elif line[:1].strip() and not kind and (last := _LAST.match(line)):
            kind, said = last["type"].rpartition(".")[2], last["message"] or ""
    caught = _WORKER.search(head)
    where = caught["where"] if caught else ""
    return (
        Reported(kind or (caught["type"] if caught else ""), said, where, *entry) if kind else None
    )


def _without_ours(lines: list[str]) -> Iterator[str]:
    hidden = False
    for line in lines:
        if found := _ENTRY.match(line):
            hidden = is_ours(found["file"])
            if cell := cell_of(found["file"]):
                line = line.replace(found["file"], cell)
        elif not line.startswith("    "):
            hidden = False
        if not hidden:
            yield line
