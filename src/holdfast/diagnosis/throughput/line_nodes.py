"""What a line trace is made of: lines at work, and the marks between them."""

from __future__ import annotations

from types import CodeType
from typing import Any

import torch
from torch import nn

FETCH, MODEL, BACKWARD, OPTIMIZER = "fetch", "model", "backward", "optimizer"


def _code(function: Any) -> CodeType | None:
    """The code behind a function, below what was wrapped around it."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return getattr(function, "__code__", None)


def marks() -> dict[CodeType, str]:
    """The code that a mark stands for: loaders, models and backward."""
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    known = (
        (_BaseDataLoaderIter.__dict__["__next__"], FETCH),
        (nn.Module._wrapped_call_impl, MODEL),
        (torch.autograd.backward, BACKWARD),
    )
    return {code: mark for function, mark in known if (code := _code(function)) is not None}


def is_step(code: CodeType) -> bool:
    """The wrapper that every optimizer's ``step`` has: torch's, or ours in its place."""
    name = code.co_qualname
    ours = name == "_step.<locals>.step" and code.co_filename.endswith("_optimizer_patches.py")
    return ours or name.endswith("profile_hook_step.<locals>.wrapper")


class Node:
    """A line at work, called through its parents; or a mark (``line`` is 0)."""

    __slots__ = ("calls", "children", "code", "hits", "line", "mark", "parent", "rest", "seconds")

    def __init__(self, parent: Node | None, code: CodeType | None, line: int, mark: str) -> None:
        self.parent, self.code, self.line, self.mark = parent, code, line, mark
        self.rest = False
        """Stands for all lines of its code while they are not followed."""
        self.children: dict[tuple[CodeType | None, int], Node] = {}
        self.seconds = 0.0
        self.hits = 0
        self.calls = 0
        """Calls into libraries."""
