"""One name for one thing: the options of all commands beside each other."""

from __future__ import annotations

from holdfast.cli import COMMANDS
from holdfast.cli._commands import find_command
from holdfast.cli._completion import CommandNode, node_of
from holdfast.cli._parser import FORMATS, Parser

# Names that once stood for the same; those on the left work still and are not listed.
FORMER = {"--json": "--format", "--out": "--output", "--only": "--select"}


def nodes() -> list[CommandNode]:
    return [node for name, _, _ in COMMANDS for node in node_of(find_command(name)).walk()]


def test_no_second_name_for_the_same():
    for node in nodes():
        names = {name for option in node.options for name in option.names}
        assert not names & set(FORMER), node.path


def test_an_option_takes_the_same_kind_of_value_everywhere():
    kinds: dict[str, set[str]] = {}
    for node in nodes():
        for option in node.options:
            for name in option.names:
                value = "switch" if option.value is None else option.value.kind
                kinds.setdefault(name, set()).add(value)
    # Of a report it is a file, of predictions a folder.
    several = {name: found for name, found in kinds.items() if len(found) > 1}
    assert several == {"--output": {"file", "folder"}}


def test_formats_are_of_one_list():
    for node in nodes():
        for option in node.options:
            if "--format" in option.names:
                assert option.value is not None
                assert set(option.value.words) <= set(FORMATS) and option.value.words[0] == "text"


def test_every_option_and_every_verb_has_a_help():
    for node in nodes():
        assert node.help, node.path
        for option in node.options:
            assert option.help, (node.path, option.names)


def test_former_names_work_still():
    parse = Parser.of(find_command("compare")).parse_args
    assert parse(["a", "b"]).format == "text"
    assert parse(["a", "b", "--json"]).format == "json"
    parse = Parser.of(find_command("predict")).parse_args
    assert parse(["a", "--out", "x"]).output == "x" and parse(["a"]).output is None
    parse = Parser.of(find_command("faults")).parse_args
    assert parse(["list", "--only", "NUM"]).select == "NUM" and parse(["list"]).select == ""
