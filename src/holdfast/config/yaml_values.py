"""Strict YAML loader, for config/__init__.py alone.

PyYAML follows YAML 1.1: ``1e-4`` is text, ``no`` is false, ``010`` is eight, ``1:30`` is
ninety, a date becomes an object and the first of two equal keys vanishes. Here numbers are
numbers, everything else stays as written until a field asks for a type, and a key that
stands twice is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import SettingsError
from holdfast.regular_files import read_regular

if TYPE_CHECKING:
    import yaml

_PLAIN = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F]+)", list("-+0123456789")),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*\.[0-9_]*)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}
# Text that means itself: names and paths, as they are mostly written.
_ITSELF = r"(?:[A-Za-z_/]|\.{1,2}/)[A-Za-z0-9_./+-]*"
_SIMPLE: dict[str, Callable[[str], Any]] = {
    _PLAIN["null"][0]: lambda text: None,
    _PLAIN["bool"][0]: lambda text: text.lower() == "true",
    _PLAIN["int"][0]: lambda text: int(text.replace("_", ""), 0),
    _ITSELF: str,
}


# A file of settings has some hundred lines.
_LARGEST = 16 << 20
# PyYAML takes a time that grows with the square of lists in lists: 7 s for 100,000.
_BRACKETS = 5000


def read(path: Path) -> Any:
    """What the file holds, None if it is empty; one ``SettingsError`` for all that can fail."""
    try:
        text = read_regular(path, _LARGEST).decode("utf-8-sig")
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise SettingsError(f"{path}: {reason}; check the path of the settings file") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: not UTF-8 text; is it a settings file?") from None
    except ValueError as error:
        raise SettingsError(f"{path}: {error}; is it a settings file?") from None
    try:
        return parse(text)
    except ValueError as error:
        raise SettingsError(f"{path}: not valid YAML, {error}; correct that line") from None


def word(text: str) -> Any:
    """What ``parse`` makes of a value typed on the command line, mostly without PyYAML."""
    for pattern, meaning in _SIMPLE.items():
        if re.fullmatch(pattern, text):
            return meaning(text)
    return parse(text)


def parse(text: str) -> Any:
    """What a YAML text holds; ``ValueError`` with the line and the reason if it is none."""
    import yaml

    if text.count("[") + text.count("{") > _BRACKETS:
        raise ValueError(f"line 1: more than {_BRACKETS:,} brackets")
    try:
        return yaml.load(text, Loader=_loader())
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ValueError(f"line {line}: {error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"line 1: {str(error).splitlines()[0]}") from None
    except (ValueError, LookupError, AttributeError):  # PyYAML's own answer to `!!bool maybe`
        raise ValueError("line 1: a value is too long or does not fit its !!tag") from None


@cache
def _loader() -> type[yaml.SafeLoader]:
    """The loader class; made on first use, so that nobody else pays for importing yaml."""
    import yaml

    class YamlLoader(yaml.SafeLoader):
        yaml_implicit_resolvers = {}  # noqa: RUF012 (PyYAML's own way to drop its rules)

        def construct_document(self, node: yaml.Node) -> Any:
            self.deep_construct = True  # an anchor that holds itself is an error, not a cycle
            return super().construct_document(node)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if key.value in seen:
                        problem = f"the key {key.value!r} appears twice"
                        raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                    seen.add(key.value)
            return super().construct_mapping(node, deep=deep)

    for name, (pattern, first) in _PLAIN.items():
        regexp = re.compile(f"^(?:{pattern})$")
        YamlLoader.add_implicit_resolver(f"tag:yaml.org,2002:{name}", regexp, first)
    return YamlLoader
