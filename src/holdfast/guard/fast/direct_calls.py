"""Torch's own functions on ordinary arguments: the same kernels, without the walk to them.

Before the kernels of ``backward``, ``clip_grad_norm_`` and ``GradScaler.unscale_`` torch asks each
tensor, in Python, about what is so in nearly every training: one loss, one device, one dtype. Here
all tensors are asked at once; then the same kernels are called with the same arguments. Where
the call is torch's, each function has done nothing and says so.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ...torch_version import was_read
from ..norms_before_clip import Measured

_READ = was_read()
_CLIPPING = ("max_norm", "norm_type", "error_if_nonfinite", "foreach")
_NUMBERS = (float, int)

_is_there = partial(operator.is_not, None)
_params_of: Callable[[dict[str, Any]], list[Tensor]] = operator.itemgetter("params")
_grad_of: Callable[[Tensor], Any] = operator.attrgetter("grad")
_dtype_of: Callable[[Tensor], torch.dtype] = operator.attrgetter("dtype")
_layout_of: Callable[[Tensor], torch.layout] = operator.attrgetter("layout")
_device_of: Callable[[Tensor], int] = Tensor.get_device
_record: Callable[[bool], None] = torch._C._set_grad_enabled
_transforming: Callable[[], bool] = torch._C._are_functorch_transforms_active
_overriding: Callable[[], bool] = torch._C._is_torch_function_mode_enabled


def backward(root: Any) -> bool:
    """``root.backward()``; True when it was called."""
    if (
        not _READ
        or type(root) is not Tensor
        or not root.requires_grad
        or root.numel() != 1
        or not root.dtype.is_floating_point
        or root.is_nested
        or _transforming()
        or _overriding()
    ):
        return False
    ones = torch.ones_like(root, memory_format=torch.preserve_format)
    how = {"allow_unreachable": True, "accumulate_grad": True}
    torch.autograd._engine_run_backward((root,), (ones,), False, False, (), **how)
    return True


def clip(
    parameters: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    measured: Measured | None = None,
) -> Tensor | None:
    """``clip_grad_norm_(parameters, *args, **kwargs)``; its result when it was called.

    Norms that somebody has just ``measured`` are not computed again.
    """
    asked = {**dict(zip(_CLIPPING, args, strict=False)), **kwargs}
    if not _READ or type(parameters) is not list or len(asked) != len(args) + len(kwargs):
        return None
    most, kind = asked.pop("max_norm", None), asked.pop("norm_type", 2.0)
    if (
        type(most) not in _NUMBERS
        or type(kind) not in _NUMBERS
        or asked.pop("error_if_nonfinite", False) is not False
        or asked.pop("foreach", None) not in (None, True)
        or asked
        or not _alike(grads := list(filter(_is_there, map(_grad_of, parameters))))
    ):
        return None
    recording = torch.is_grad_enabled()
    _record(False)
    try:
        kind, norms = float(kind), None
        if measured is not None and kind == 2.0:
            norms = _norms_of(grads, *measured)
        norms = torch._foreach_norm(grads, kind) if norms is None else norms
        total = torch.linalg.vector_norm(torch.stack(list(norms)), kind)
        share = torch.clamp(float(most) / (total + 1e-6), max=1.0)
        torch._foreach_mul_(grads, share)
    finally:
        _record(recording)
    return total


def _norms_of(
    grads: Sequence[Tensor], measured: Sequence[Tensor], norms: Sequence[Tensor]
) -> Sequence[Tensor] | None:
    """The norms, where they are of these gradients in this order and of their precision."""
    same = len(grads) == len(measured) and all(map(operator.is_, grads, measured))
    return norms if same and norms[0].dtype is grads[0].dtype else None


def unscale(
    optimizer: Optimizer, inverse: Tensor, found: Tensor, allow_half: bool
) -> dict[torch.device, Tensor] | None:
    """``GradScaler._unscale_grads_``; what it has found on the device when it was called."""
    parameters = chain.from_iterable(map(_params_of, optimizer.param_groups))
    grads = list(filter(_is_there, map(_grad_of, parameters)))
    if (
        not _READ
        or not _alike(grads)
        or not (device := grads[0].device) == inverse.device == found.device
    ):
        return None
    if not allow_half and grads[0].dtype is torch.float16:
        return None
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, inverse)
    return {device: found}


def _alike(grads: Sequence[Any]) -> bool:
    """Whether these are plain tensors, of one kind, on a device that has kernels for lists."""
    return (
        {*map(type, grads)} == {Tensor}
        and {*map(_layout_of, grads)} == {torch.strided}
        and len({*map(_dtype_of, grads)}) == 1
        and len({*map(_device_of, grads)}) == 1
        and grads[0].device.type in ("cpu", "cuda")
    )
