"""Errors that say that memory ran out, and how it is freed before a second try."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ...run import host_memory

# What libraries of CUDA say when they get no memory for their workspace, and otherwise too.
_LIBRARIES = re.compile(
    r"CUDNN_STATUS_(NOT_SUPPORTED|INTERNAL_ERROR|EXECUTION_FAILED)"
    r"|CUBLAS_STATUS_(NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED)"
    r"|unable to find an engine to execute"
)
# Bytes that are next to none.
_FULL = 256 << 20


def ran_out(error: BaseException, device: torch.device) -> bool:
    """Whether an exception says that memory ran out."""
    if isinstance(error, torch.OutOfMemoryError) or host_memory.ran_out(error):
        return True
    if device.type != "cuda" or not _LIBRARIES.search(str(error)):
        return False
    free, total = torch.cuda.mem_get_info(device)
    limit = total * torch.cuda.get_per_process_memory_fraction(device)
    return min(free, limit - torch.cuda.memory_reserved(device)) < _FULL


def release(device: torch.device) -> None:
    """Give back what nobody holds any more; call it outside of the ``except`` block."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def free_graph(roots: Iterable[Tensor]) -> int:
    """Drop what a graph has saved for backward, although the script holds its outputs.

    Nothing is allocated for it, and no tensor of the script changes. Returns how many there were.
    """
    todo: list[Any] = [t.grad_fn for t in roots if t.grad_fn is not None]
    seen = set(todo)
    dropped = 0
    while todo:
        node = todo.pop()
        for inner, _ in node.next_functions:
            if inner is not None and inner not in seen:
                seen.add(inner)
                todo.append(inner)
        for name in dir(node):
            if name.startswith("_raw_saved"):
                dropped += _drop(node, name)
    return dropped


def _drop(node: Any, name: str) -> int:
    dropped = 0
    try:
        saved = getattr(node, name)
    except RuntimeError:  # freed already
        return 0
    for one in saved if isinstance(saved, tuple | list) else (saved,):
        try:
            # A saved tensor is let go for what the first function makes of it.
            one.register_hooks(lambda tensor: None, _gone)
            dropped += 1
        except (RuntimeError, AttributeError):
            continue
    return dropped


def _gone(nothing: object) -> Tensor:
    raise RuntimeError("the graph of this step was freed, because memory ran out in its backward")
