"""Every kind of event that is written or asked for is declared in ``records``, and documented."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast.records import KINDS, THEMES, Note, Record, RecordError, fault, note
from holdfast.records.base import event_from
from holdfast.records.run import End

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "holdfast"
RECORDS = SRC / "records"

WRITERS = {"event", "record", "record_at", "note", "_record", "note_of_script"}
"""Methods that hand an event on: the word is their first argument where no record is."""
READERS = {"events_of", "event_at", "happened", "latest", "_first"}
"""Functions that are asked for events of a kind."""


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(SRC.rglob("*.py")):
        if RECORDS not in path.parents:
            yield path, ast.parse(path.read_text())


def words(node: ast.expr | None, constants: dict[str, set[str]]) -> set[str]:
    """The words that an expression may stand for, as far as the sources say it."""
    match node:
        case ast.Constant(value=str(word)):
            return {word}
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return constants.get(name, set())
        case ast.IfExp(body=one, orelse=other):
            return words(one, constants) | words(other, constants)
        case ast.Tuple(elts=elements) | ast.Set(elts=elements) | ast.List(elts=elements):
            return {word for one in elements for word in words(one, constants)}
        case _:
            return set()


def kinds_in(tree: ast.Module, constants: dict[str, set[str]]) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        found: set[str] = set()
        match node:
            case ast.Call(func=ast.Name(id="Event"), keywords=keywords):
                for keyword in keywords:
                    found |= words(keyword.value, constants) if keyword.arg == "kind" else set()
            case ast.Call(
                func=ast.Attribute(attr=name, value=ast.Name(id=owner) | ast.Attribute(attr=owner)),
                args=[first, *_],
            ) if name in WRITERS and owner not in ("torch", "re"):
                found = words(first, constants)
            case ast.Call(func=ast.Name(id="attempt"), args=[_, _, what, kind, *_]) if (
                isinstance(what, ast.Attribute) and what.attr in WRITERS
            ):
                found = words(kind, constants)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=arguments) if (
                name in READERS
            ):
                found = {word for one in arguments[:2] for word in words(one, constants)}
            case ast.Compare(
                left=ast.Attribute(attr="kind", value=ast.Name(id="event" | "e")),
                comparators=[against],
            ):
                found = words(against, constants)
            case _:
                pass
        yield from ((getattr(node, "lineno", 0), word) for word in found)


@pytest.fixture(scope="module")
def parsed() -> list[tuple[Path, ast.Module]]:
    return list(trees())


def constants_of(tree: ast.Module) -> dict[str, set[str]]:
    """Words and tuples of words that a file has given a name in capitals."""
    found: dict[str, set[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                pairs = zip(names, values, strict=True) if len(names) == len(values) else ()
                for name, value in [*pairs, (target, node.value)]:
                    if isinstance(name, ast.Name) and name.id.isupper():
                        found[name.id] = words(value, found)
    return found


def named_in(tree: ast.Module, every: dict[str, dict[str, set[str]]]) -> dict[str, set[str]]:
    """The constants of a file, and those it takes from others."""
    known = constants_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            there = every.get(node.module.rpartition(".")[2], {})
            known |= {
                alias.asname or alias.name: there[alias.name]
                for alias in node.names
                if alias.name in there
            }
    return known


def test_every_kind_that_is_written_or_asked_for_is_declared(
    parsed: list[tuple[Path, ast.Module]],
) -> None:
    every = {path.stem: constants_of(tree) for path, tree in parsed}
    found = [
        (word, f"{path.relative_to(SRC)}:{line}")
        for path, tree in parsed
        for line, word in kinds_in(tree, named_in(tree, every))
    ]
    assert len({word for word, _ in found}) > 10  # or nothing is found any more
    unknown = {word: where for word, where in found if word not in KINDS}
    assert not unknown, "declare them in holdfast/records/"


def test_every_kind_that_is_declared_is_used(parsed: list[tuple[Path, ast.Module]]) -> None:
    used = {name for _, tree in parsed for name in names_in(tree)}
    assert not [kind for kind, record in KINDS.items() if record.__name__ not in used]


def names_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            yield node.id if isinstance(node, ast.Name) else node.attr


def test_kinds_are_declared_nowhere_else(parsed: list[tuple[Path, ast.Module]]) -> None:
    elsewhere = [
        f"{path.relative_to(SRC)}:{node.lineno}"
        for path, tree in parsed
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any(word.arg == "kind" for word in node.keywords)
    ]
    assert not elsewhere


def test_no_two_records_have_one_kind() -> None:
    classes = [one for theme in THEMES for one in vars(theme).values() if isinstance(one, type)]
    own = {one for one in classes if issubclass(one, Record) and vars(one).get("kind")}
    assert len(own) == len(KINDS)


def load_builder() -> ModuleType:
    script = ROOT / "docs" / "build_records.py"
    spec = importlib.util.spec_from_file_location("build_records", script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


builder = load_builder()
ALL: list[type[Record]] = [one for theme in THEMES for one in builder._classes(theme)]


@pytest.mark.parametrize("record", ALL, ids=lambda record: record.__name__)
def test_a_record_says_what_it_is_and_so_do_its_fields(record: type[Record]) -> None:
    assert "__doc__" in vars(record) and record.__doc__
    assert not [name for name, said in builder.meanings(record).items() if not said]


@pytest.mark.parametrize("record", ALL, ids=lambda record: record.__name__)
def test_every_annotation_can_be_read(record: type[Record]) -> None:
    # Of the trainer's numbers the names are keys: there none is unknown, and each has a value.
    with pytest.raises(RecordError, match=r"the unknown key|is not a number"):
        record.from_dict({"never": "a text"})


def test_the_page_is_not_stale() -> None:
    assert builder.PAGE.read_text() == builder.page(), f"run: {builder.COMMAND}"


def test_a_note_of_a_script_is_kept_as_it_is() -> None:
    data = {"value": 1.5, "of": [{"deep": None}]}
    assert note("my_metric", data) == Note("my_metric", data)
    event = event_from(3, note("my_metric", data), 1)
    assert (event.kind, event.data, event.step, event.rank) == ("my_metric", data, 3, 1)
    assert fault(event) == ""


@pytest.mark.parametrize("data", [{"steps": 3, "mine": 1}, {"steps": "three"}])
def test_a_note_with_one_of_our_words_must_be_what_readers_take_it_for(data: Any) -> None:
    with pytest.raises(RecordError, match="choose another word"):
        note("end", data)
    assert note("end", {"steps": 3}) == End(steps=3)
