"""The names under which a file of the user's knows torch."""

from __future__ import annotations

import ast
from functools import lru_cache

from .loops import nodes_of


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
