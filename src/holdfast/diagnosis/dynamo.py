"""Coexist with torch.compile: hide our functions from dynamo, and count what it compiled.

A trace function is called inside of frames that dynamo looks at, which takes it for a part of the
model and compiles it. Nothing here imports dynamo, which takes seconds.
"""

from __future__ import annotations

import contextlib
import sys
from types import CodeType

_hidden: set[CodeType] = set()


def hide(*codes: CodeType) -> None:
    """Keep dynamo away from these and all they call; asked before each use, as it may come late."""
    module = sys.modules.get("torch._dynamo.eval_frame")
    if module is None or _hidden.issuperset(codes):
        return
    _hidden.update(codes)
    with contextlib.suppress(AttributeError, TypeError, ImportError):
        from torch._dynamo.types import FrameAction, FrameExecStrategy

        for code in codes:
            strategy = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
            module.set_code_exec_strategy(code, strategy)


def compilations() -> int:
    """How many frames dynamo has looked into."""
    module = sys.modules.get("torch._dynamo.utils")
    return int(module.counters["frames"]["total"]) if module is not None else 0
