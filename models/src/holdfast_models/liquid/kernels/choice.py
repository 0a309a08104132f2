"""Whether a kernel is taken: on a GPU with triton, in float32, and only after it was tried there.

with using("off"):      # plain torch, to compare with
    net(tokens)
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor

Trial = Callable[[str, torch.device, tuple[Any, ...]], str | None]
"""What is wrong with a kernel of this kind and these sizes on a device; None: nothing."""

_how: Literal["auto", "off", "always"] = "auto"
_trial: Trial | None = None
_FAULTS: dict[tuple[str, int, tuple[int | str, ...]], str | None] = {}


@contextlib.contextmanager
def using(how: Literal["auto", "off", "always"]) -> Iterator[None]:
    """Kernels where they are sound, never, or untried and wherever they run."""
    global _how
    before, _how = _how, how
    try:
        yield
    finally:
        _how = before


def try_by(trial: Trial) -> None:
    """Set how kernels are tried; until then none is taken unless ``using("always")``.

    A trial runs parts of the network, which ask here: so the network hands it over.
    """
    global _trial
    _trial = trial


def takes(kind: str, x: Tensor, *sizes: int | str) -> bool:
    """Whether a kernel computes what follows from ``x``.

    Args:
        kind: "scan", "lif", "cfc", "selective", "attend", "rows" or "norm".
        x: a tensor that goes into it.
        sizes: what its programs are cut by, which it is tried with.
    """
    if _how == "off" or x.dtype != torch.float32:
        return False
    # A transform of torch.func needs rules that the kernels have not, and a file no kernels at all.
    if torch.compiler.is_exporting():
        return False
    transforms: Any = torch._C._functorch  # type: ignore[attr-defined]
    if not torch.compiler.is_compiling() and transforms.peek_interpreter_stack():
        return False
    if _how == "always":
        return True
    return x.device.type == "cuda" and _sound(kind, x.device.index, sizes)


def faults() -> list[str]:
    """Why kernels are not taken that were tried, a line each."""
    return [f"{kind} {sizes}: {why}" for (kind, _, sizes), why in _FAULTS.items() if why]


@functools.cache
def _has_triton(device: int) -> bool:
    capable = torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 8
    return capable and importlib.util.find_spec("triton") is not None


@torch.compiler.assume_constant_result
def _sound(kind: str, device: int, sizes: tuple[int | str, ...]) -> bool:
    """Whether it computes there what plain torch does; tried once, also while a graph is made."""
    key = (kind, device, sizes)
    if _trial is None:
        return False
    if key not in _FAULTS:
        if not _has_triton(device):
            _FAULTS[key] = "no Triton for this device"
        elif torch.cuda.is_current_stream_capturing():
            return False
        else:
            _FAULTS[key] = None  # while it is tried, it is taken
            _FAULTS[key] = why = _trial(kind, torch.device("cuda", device), sizes)
            if why:
                warnings.warn(f"the {kind} kernel is not used: {why}", stacklevel=2)
    return _FAULTS[key] is None
