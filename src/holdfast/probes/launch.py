"""Start a compiled Triton kernel without the dispatch around it.

``kernel[grid](...)`` looks at every argument to find out what to run, which costs more than to
run it. A compiled kernel takes addresses as numbers and asks only for device, stream and hooks of
profilers; where its insides are known even that is left out: it is done in every training step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Where the launcher of a compiled kernel takes the arguments that are given here.
_KNOWN = ("3.6.",)


def launcher(compiled: Any, grid: tuple[int, int, int]) -> Callable[..., object]:
    """What starts a compiled kernel on the current device and stream.

    Args:
        compiled: what the first launch has given back.
        grid: how many programs.
    """
    return _direct(compiled, grid) or compiled[grid]


def _direct(compiled: Any, grid: tuple[int, int, int]) -> Callable[..., object] | None:
    import triton  # pyright: ignore[reportMissingImports]

    if not triton.__version__.startswith(_KNOWN):
        return None
    own = compiled.run
    if own.global_scratch_size or own.profile_scratch_size:
        return None
    launch, function, packed = own.launch, compiled.function, compiled.packed_metadata
    flags = own.launch_cooperative_grid, own.launch_pdl
    before = *flags, None, None, packed, None, None, None
    device, stream_of = torch.cuda.current_device(), torch._C._cuda_getCurrentRawStream

    def start(*args: Any) -> None:
        launch(*grid, stream_of(device), function, *before, *args)

    return start
