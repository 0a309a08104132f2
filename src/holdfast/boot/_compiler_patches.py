"""Keep torch's compiler out of scripts that compile nothing, to pay for the start of a run.

Torch marks some methods as none of its compiler's business. The first call of one, made by the
first optimizer, loads the compiler to tell it so, which takes a second or more. As long as nothing
else has loaded it there is nobody to tell.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from ._patch import Function, GetEngine, Patch

_COMPILER = "torch._dynamo"
_MARK = "torch._compile"
"""Where torch defines what loads the compiler."""


def _unmarked(engine_of: GetEngine, original: Function) -> Function:
    bare, loaded = _bare(original), sys.modules

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        return (original if _COMPILER in loaded else bare)(*args, **kwargs)

    return function


def _bare(function: Any) -> Function:
    """The function below the mark, where there is one."""
    return function.__wrapped__ if function.__globals__["__name__"] == _MARK else function


PATCHES = tuple(
    Patch(
        target=f"torch.optim.Optimizer.{name}",
        why="its first call loads torch's compiler, which takes a second, only to tell it that "
        "this method is not to be compiled",
        make=_unmarked,
    )
    for name in ("add_param_group", "state_dict", "load_state_dict")
)
