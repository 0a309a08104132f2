"""Write docs/events.md: the columns of a step and every kind of event, from `records/`.

python docs/build_records.py      or: make docs
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

from holdfast.records import THEMES, Kind, Record, columns

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "events.md"
COMMAND = "python docs/build_records.py"

OBVIOUS = {
    "code": "Code of the finding.",
    "error": "Class and text of the exception.",
    "file": "File of a line of the script.",
    "line": "Number of that line.",
    "message": "Text of the exception.",
    "name": "What it is called.",
    "on": "Whether it begins; false where it ends.",
    "pid": "Of the process.",
    "rank": "Of the process.",
    "seconds": "How long it took.",
    "step": "Number of the step.",
    "what": "What it is about.",
    "where": "Part of holdfast.",
    "why": "The reason, in words; empty where there is none.",
}
"""What these names mean in every record whose class says nothing else."""

_TYPES = {
    "Any": "any",
    "bool": "true or false",
    "float": "number",
    "int": "whole number",
    "str": "text",
    "None": "nothing",
}


def page() -> str:
    """The whole page."""
    parts = [
        "# Columns and events",
        f"Built by `{COMMAND}` from `src/holdfast/records/`; edit that.\n\n"
        "What the process that trains writes down and others read: a row for each step "
        "(`steps.rN.*.bin`), and an event for what happens once, a line of JSON each in "
        "`events.rN.jsonl` with `time`, `rank`, `step`, `kind` and `data`. Below are the columns, "
        "then the keys of `data` by kind. NaN and infinities are words there, as JSON has no such "
        "numbers. Kinds that are not listed are notes of a script or a plugin "
        "(`watch.note(kind, data)`).",
        "## Columns of a step",
        "NaN where a value was not measured. `step` and `time` (seconds since 1970) stand before "
        "them.",
        _table(
            ("column", "meaning"),
            [(f"`{name}`", meaning) for name, meaning in columns.COLUMNS.items()],
        ),
    ]
    for theme in THEMES:
        kinds = [one for one in _classes(theme) if issubclass(one, Kind) and one.kind]
        if kinds:
            parts += [f"## {_summary(theme.__doc__)}", *map(_section, kinds)]
            nested = [one for one in _classes(theme) if not issubclass(one, Kind)]
            parts += [_nested(one) for one in nested]
    return "\n\n".join(parts) + "\n"


def _classes(theme: object) -> list[type[Record]]:
    """The records that a file defines, in its order."""
    name = vars(theme)["__name__"]
    return [
        one
        for one in vars(theme).values()
        if isinstance(one, type) and issubclass(one, Record) and one.__module__ == name
    ]


def _section(kind: type[Kind]) -> str:
    rows = _rows(kind)
    return f"### `{kind.kind}`\n\n{_text(kind.__doc__)}" + (f"\n\n{rows}" if rows else "")


def _nested(record: type[Record]) -> str:
    return f"### {record.__name__}\n\n{_text(record.__doc__)}\n\n{_rows(record)}"


def _rows(record: type[Record]) -> str:
    said = meanings(record)
    rows = [(f"`{name}`", type_, said[name]) for name, type_ in _fields(record)]
    return _table(("key", "value", "meaning"), rows) if rows else ""


def _fields(record: type[Record]) -> Iterator[tuple[str, str]]:
    """Each field with the words for what it holds."""
    hints: dict[str, str] = {}
    for base in reversed(record.__mro__):
        hints |= {name: str(hint) for name, hint in inspect.get_annotations(base).items()}
    for name in record.fields():
        yield name, type_words(hints[name])


def type_words(hint: str) -> str:
    """What an annotation allows, in words.

    >>> type_words("tuple[str, ...]"), type_words("int | None")
    ('list of text', 'whole number or nothing')
    """
    return _words(ast.parse(hint, mode="eval").body)


def _words(node: ast.expr) -> str:
    match node:
        case ast.BinOp(left=left, right=right):
            return f"{_words(left)} or {_words(right)}"
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[one, ast.Constant()])):
            return f"list of {_words(one)}"
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=elements)):
            return f"list of {', '.join(map(_words, elements))}"
        case ast.Subscript(value=ast.Name(id="Mapping" | "dict"), slice=ast.Tuple(elts=[_, value])):
            return f"mapping of text to {_words(value)}"
        case ast.Subscript(value=ast.Name(id="Sequence" | "list"), slice=one):
            return f"list of {_words(one)}"
        case ast.Subscript(value=ast.Name(id="Literal"), slice=ast.Tuple(elts=elements)):
            return " or ".join(f"`{ast.literal_eval(element)}`" for element in elements)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=one):
            return f"`{ast.literal_eval(one)}`"
        case _:
            name = ast.unparse(node)
            return _TYPES.get(name, name)


def meanings(record: type[Record]) -> dict[str, str]:
    """What is said of each field: by the text below it, else by ``OBVIOUS``; empty if by none."""
    found = {name: OBVIOUS.get(name, "") for name in record.fields()}
    for base in reversed(record.__mro__):
        if issubclass(base, Record) and base not in (Record, Kind):
            found |= _texts_below(base)
    return found


def _texts_below(record: type[Record]) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(said))),
            ):
                found[name] = _text(said)
            case _:
                pass
    return found


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |"
                     for line in lines)  # fmt: skip


def _summary(text: str | None) -> str:
    return _text(text).partition(".")[0]


def _text(text: str | None) -> str:
    return " ".join((text or "").split()).replace("``", "`")


def main() -> None:
    """Write the page."""
    PAGE.write_text(page())
    print(PAGE.relative_to(ROOT))


if __name__ == "__main__":
    main()
