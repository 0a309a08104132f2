"""Sources in parts, for rules that look at all of them: each file is parsed once for all rules."""

from __future__ import annotations

import ast
from functools import cache


@cache
def nodes(source: str) -> list[ast.AST]:
    """Every node of a source in the order of ``ast.walk``, without the marks of load and store."""
    return [node for node in ast.walk(ast.parse(source)) if not isinstance(node, ast.expr_context)]
