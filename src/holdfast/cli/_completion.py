"""Completion scripts for shells, made of the parsers of all commands."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ._parser import Parser

RUN, FILE, FOLDER, CODE, NOTHING = "run", "file", "folder", "code", ""
# What an argument is, by the name that the help gives it.
_KINDS = {
    **dict.fromkeys(("RUN", "RUN|auto", "A", "B", "PATH"), RUN),
    **dict.fromkeys(("FILE", "SCRIPT", "COMMAND", "OUT"), FILE),
    **dict.fromkeys(("DIR", "ROOT", "FOLDER"), FOLDER),
    **dict.fromkeys(("CODE", "CODES", "WORD", "CODE=ACTION"), CODE),
}


@dataclass(frozen=True, kw_only=True)
class ArgumentValue:
    """What may stand for an argument: words to choose from, or a kind of thing."""

    kind: str = NOTHING
    words: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option; one without ``value`` is a switch."""

    names: tuple[str, ...]
    help: str
    value: ArgumentValue | None = None


@dataclass(frozen=True, kw_only=True)
class CommandNode:
    """A command or a verb of one."""

    path: tuple[str, ...]
    help: str
    options: tuple[Option, ...] = ()
    arguments: tuple[ArgumentValue, ...] = ()
    verbs: tuple[CommandNode, ...] = ()
    hands_over: bool = False
    """Whether everything after its first argument belongs to a script."""

    def walk(self) -> Iterator[CommandNode]:
        """This one and all below it."""
        yield self
        for verb in self.verbs:
            yield from verb.walk()


def node_of(command: Any) -> CommandNode:
    """The node of a command."""
    more = tuple(_node(tuple(v.name.split()), Parser.of(v), v) for v in _verbs(command))
    return _node((command.name,), Parser.of(command), command, more)


def _verbs(command: Any) -> list[Any]:
    return [verb() for verb in getattr(command, "verbs", ())]


def _node(
    path: tuple[str, ...], parser: Parser, command: Any = None, verbs: tuple[CommandNode, ...] = ()
) -> CommandNode:
    options: list[Option] = []
    arguments: list[ArgumentValue] = []
    for action in parser.actions:
        if action.help == argparse.SUPPRESS:
            continue
        choices: Any = action.choices
        if isinstance(choices, dict):
            below = cast("dict[str, Parser]", choices)
            verbs += tuple(_node((*path, name), parser) for name, parser in below.items())
        elif action.option_strings:
            takes = action.nargs != 0
            names = tuple(action.option_strings)
            value = _value(action) if takes else None
            options.append(Option(names=names, help=_first(action.help), value=value))
        else:
            arguments.append(_value(action))
    about = (parser.description or "").strip()
    return CommandNode(
        path=path,
        help=_first(about),
        options=tuple(options),
        arguments=tuple(arguments),
        verbs=verbs,
        hands_over=getattr(command, "hands_over", False),
    )


def _value(action: argparse.Action) -> ArgumentValue:
    if action.choices is not None:
        return ArgumentValue(words=tuple(map(str, action.choices)))
    name = action.metavar if isinstance(action.metavar, str) else ""
    if name == "WORD" and action.option_strings:  # a word of its own, in a command of a plugin
        return ArgumentValue()
    words = ("auto",) if name == "RUN|auto" else ()
    return ArgumentValue(kind=_KINDS.get(name, NOTHING), words=words)


def _first(text: str | None) -> str:
    """The first sentence of a help, short enough for a menu."""
    line = " ".join((text or "").replace("%%", "%").split())
    for end in (". ", ": ", "; ", " ("):
        line = line.partition(end)[0]
    return line.rstrip(".")[:72]


def bash_script(nodes: Sequence[CommandNode], codes: Sequence[str]) -> str:
    """The completion for bash; zsh reads the same, see ``zsh_script``."""
    every = [node for top in nodes for node in top.walk()]
    valued = [
        (f"{_at(node)} {name}", option.value)
        for node in every
        for option in node.options
        if option.value is not None
        for name in option.names
    ]
    lines = [
        "_holdfast_offer() {",
        "    # A kind of thing, and words that may stand for it, too.",
        "    local words=\"$2\"",
        "    case \"$1\" in",
        "        run) words=\"$words last $(command ls -1 runs 2>/dev/null)\" ;;",
        f"        code) words=\"$words {' '.join(codes)}\" ;;",
        "    esac",
        "    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))",
        "    case \"$1\" in",
        "        run|folder) COMPREPLY+=($(compgen -d -- \"$cur\")) ;;",
        "        file) COMPREPLY+=($(compgen -f -- \"$cur\")) ;;",
        "    esac",
        "}",
        "",
        "_holdfast() {",
        "    local cur=\"${COMP_WORDS[COMP_CWORD]}\" prev=\"${COMP_WORDS[COMP_CWORD-1]}\"",
        "    local at=\"\" word=\"\" given=0 i",
        "    COMPREPLY=()",
        "    # --format=json arrives in three words.",
        "    if [ \"$cur\" = \"=\" ]; then cur=\"\"; fi",
        "    if [ \"$prev\" = \"=\" ]; then prev=\"${COMP_WORDS[COMP_CWORD-2]}\"; fi",
        "    for ((i = 1; i < COMP_CWORD; i++)); do",
        "        word=\"${COMP_WORDS[i]}\"",
        "        case \"$at/$word\" in",
        f"            {_alternatives(_at(node) for node in every)})",
        "                at=\"$at/$word\"; continue ;;",
        "        esac",
        "        case \"$at $word\" in",
        f"            {_alternatives(name for name, _ in valued)}) ((i++)) ;;",
        "            *\" -\"*|*\" =\") ;;",
        "            *) ((given++)) ;;",
        "        esac",
        "    done",
    ]  # fmt: skip
    for node in every:
        if node.hands_over:
            lines += [
                f"    if [ \"$at\" = {_at(node)} ] && [ \"$given\" -gt 0 ]; then",
                "        COMPREPLY=($(compgen -f -- \"$cur\")); return",
                "    fi",
            ]  # fmt: skip
    lines += ["    case \"$at $prev\" in"]  # fmt: skip
    for name, value in valued:
        lines.append(f"        {shlex.quote(name)}) {_offer(value)}; return ;;")
    lines += ["    esac", "    case \"$at $cur\" in"]  # fmt: skip
    for node in every:
        names = " ".join(name for option in node.options for name in option.names)
        lines.append(f"        {shlex.quote(_at(node) + ' -')}*) {_offer(_words(names))} ;;")
        if node.verbs:
            verbs = _words(" ".join(verb.path[-1] for verb in node.verbs))
            # A verb, or an argument where the command has one itself.
            kinds = [value for value in node.arguments if value.kind or value.words]
            lines.append(f"        {shlex.quote(_at(node) + ' ')}*) {_offer(verbs, *kinds)} ;;")
        else:
            known = node.arguments[0] if node.arguments else ArgumentValue()
            lines.append(f"        {shlex.quote(_at(node) + ' ')}*) {_offer(known)} ;;")
    tops = " ".join(node.path[0] for node in nodes)
    lines += [
        f"        \" \"*) {_offer(_words(f'{tops} --help --version'))} ;;",
        "    esac",
        "}",
        "",
        "complete -o filenames -F _holdfast holdfast",
    ]  # fmt: skip
    return "\n".join(["# Completion of holdfast for bash: holdfast completion bash", *lines, ""])


def zsh_script(nodes: Sequence[CommandNode], codes: Sequence[str]) -> str:
    """The completion for zsh, by its own support for functions of bash."""
    head = "#compdef holdfast\n# Completion of holdfast for zsh: holdfast completion zsh\n"
    load = "autoload -U +X bashcompinit && bashcompinit\n"
    return head + load + bash_script(nodes, codes).partition("\n")[2]


def fish_script(nodes: Sequence[CommandNode], codes: Sequence[str]) -> str:
    """The completion for fish."""
    lines = [
        "# Completion of holdfast for fish: holdfast completion fish",
        "complete -c holdfast -f",
        "function __holdfast_runs",
        "    echo last",
        "    command ls -1 runs 2>/dev/null",
        "end",
    ]
    kinds = {
        RUN: "(__holdfast_runs) (__fish_complete_directories)",
        FILE: "(__fish_complete_path)",
        FOLDER: "(__fish_complete_directories)",
        CODE: " ".join(codes),
        NOTHING: "",
    }
    for node in nodes:
        lines.append(_fish("__fish_use_subcommand", f"-a {node.path[0]}", node.help))
    for node in (below for top in nodes for below in top.walk()):
        here = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in node.path)
        # A verb may be called like a command: holdfast faults run.
        others = [top.path[0] for top in nodes if any(v.path[1:] == node.path for v in top.verbs)]
        here += f"; and not __fish_seen_subcommand_from {' '.join(others)}" * bool(others)
        for verb in node.verbs:
            lines.append(_fish(here, f"-a {verb.path[-1]}", verb.help))
        for option in node.options:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in option.names
            )
            value = option.value
            if value is not None:
                said = " ".join(filter(None, [*value.words, kinds[value.kind]]))
                names += f" -x -a {shlex.quote(said)}" if said else " -x"
            lines.append(_fish(here, names, option.help))
        for value in node.arguments:
            said = " ".join(filter(None, [*value.words, kinds[value.kind]]))
            if said:
                lines.append(_fish(here, f"-a {shlex.quote(said)}", ""))
    return "\n".join([*lines, ""])


def _fish(when: str, what: str, about: str) -> str:
    reported = f" -d {shlex.quote(about)}" if about else ""
    return f"complete -c holdfast -n {shlex.quote(when)} {what}{reported}"


def _at(node: CommandNode) -> str:
    return f"/{'/'.join(node.path)}"


def _alternatives(texts: Iterator[str]) -> str:
    return "|".join(shlex.quote(text) for text in texts)


def _words(text: str) -> ArgumentValue:
    return ArgumentValue(words=tuple(text.split()))


def _offer(value: ArgumentValue, *more: ArgumentValue) -> str:
    words = " ".join([*value.words, *(word for other in more for word in other.words)])
    kind = next((one.kind for one in (value, *more) if one.kind), "none")
    return f"_holdfast_offer {kind} {shlex.quote(words)}"
