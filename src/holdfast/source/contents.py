"""What a file of the user's has in it, wherever that stands: hooks, a name for torch."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from .files import lines_of, nodes_of
from .syntax import called

_REGISTERS = re.compile(r"\bregister_(\w*hook|parametrization)\(")


@lru_cache(maxsize=64)
def name_of_torch(file: str) -> str:
    """``torch``, or what the file imports it as; empty where it imports only parts of it."""
    found: list[str] = []
    for node in nodes_of(file):
        for alias in node.names if isinstance(node, ast.Import) else ():
            if alias.name == "torch":
                found.append(alias.asname or "torch")
            elif alias.name.startswith("torch.") and not alias.asname:
                found.append("torch")
    return min(found, key=lambda name: (name != "torch", name), default="")


@lru_cache(maxsize=64)
def calls_of(file: str, name: str) -> list[int]:
    """The lines of a file on which a function of that name is called."""
    return [n.lineno for n in nodes_of(file) if isinstance(n, ast.Call) and called(n) == name]


@lru_cache(maxsize=64)
def keeps_graphs(file: str) -> bool:
    """Whether a file asks a backward pass to keep its graph."""
    return any(isinstance(n, ast.keyword) and n.arg == "retain_graph" for n in nodes_of(file))


def registers(file: str) -> list[int]:
    """The lines of a file that register hooks or parametrizations."""
    lines = enumerate(lines_of(file), 1)
    return [number for number, text in lines if _REGISTERS.search(text)]


@lru_cache(maxsize=64)
def loads_optimizer(file: str) -> int:
    """The line at which a script restores an optimizer by itself; 0 where it does not."""
    for node in nodes_of(file):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "load_state_dict"
            and "opt" in ast.unparse(node.func.value).lower()
        ):
            return node.lineno
    return 0
