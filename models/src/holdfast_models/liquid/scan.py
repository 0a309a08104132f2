"""Linear recurrence over time: h_t = decay_t * h_{t-1} + value_t, elementwise, along dimension 1.

Every linear memory of the family is this one function: ltc_scan, spiking units without reset, the
state of Mamba and the traces of plasticity. ``loop`` is the truth that the other forms are tested
against. ``chunk`` is the default, one kernel on a GPU. ``associative`` is torch's own scan.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast import HoldfastError

from .kernels import ops
from .kernels.choice import takes

FORMS = ("loop", "associative", "chunk")


def scan(
    decay: Tensor | float, value: Tensor, initial: Tensor | None = None, *, form: str = "chunk"
) -> Tensor:
    """All states h of the recurrence, shaped like ``value`` (B, T, ...); the last is ``h[:, -1]``.

    ``decay`` broadcasts against ``value``. ``initial`` is h before the first step, (B, ...), zeros
    when it is missing. Half-precision inputs are computed, and come back, in float32.
    """
    if form not in FORMS:
        raise HoldfastError(f"scan has no form {form!r}; choose one of {', '.join(FORMS)}.")
    a = decay if isinstance(decay, Tensor) else value.new_full((), decay)
    dtype = torch.promote_types(torch.promote_types(a.dtype, value.dtype), torch.float32)
    a, value = torch.broadcast_tensors(a.to(dtype), value.to(dtype))
    start = torch.zeros_like(value[:, 0]) if initial is None else initial.to(dtype)
    start = start.expand_as(value[:, 0])
    return _loop(a, value, start) if form == "loop" else _Scan.apply(a, value, start, form, False)


def _loop(decay: Tensor, value: Tensor, initial: Tensor) -> Tensor:
    """Step by step; the steps come from unbind, whose backward stays linear in T."""
    h, states = initial, []
    for a, b in zip(decay.unbind(1), value.unbind(1), strict=True):
        h = torch.addcmul(b, a, h)
        states.append(h)
    return torch.stack(states, 1)


def chunk_length(steps: int) -> int:
    """Steps in a chunk: about the square root, which makes chunk plus carry shortest."""
    return 16 if steps <= 256 else 32 if steps <= 1024 else 64


def _chunk(decay: Tensor, value: Tensor, initial: Tensor) -> Tensor:
    """All chunks at once from zero, then the carry from chunk to chunk, then both together.

    The order of the operations depends on T alone, so a row does not depend on the batch around it.
    """
    steps = value.shape[1]
    length = chunk_length(steps)
    # A CPU waits for memory where a step is wide: fewer passes then beat fewer steps. One thread,
    # (4, 512, 1024): 23 ms in steps, 43 ms in chunks; 256 wide: 13 and 8.
    wide = value.device.type == "cpu" and value.shape[2:].numel() >= 512
    if steps <= length or wide:
        return _loop(decay, value, initial)
    padding = -steps % length
    if padding:  # decay 1 and value 0 hand the state on
        rest = value[:, :1].expand(-1, padding, *value.shape[2:])
        decay = torch.cat([decay, torch.ones_like(rest)], 1)
        value = torch.cat([value, torch.zeros_like(rest)], 1)
    decay, value = decay.unflatten(1, (-1, length)), value.unflatten(1, (-1, length))
    alone = _loop(
        decay.flatten(0, 1), value.flatten(0, 1), torch.zeros_like(value[:, :, 0]).flatten(0, 1)
    )
    alone = alone.unflatten(0, value.shape[:2])
    kept = decay.cumprod(2)
    ends = _chunk(kept[:, :, -1], alone[:, :, -1], initial)
    carry = torch.cat([initial.unsqueeze(1), ends[:, :-1]], 1)
    return torch.addcmul(alone, kept, carry.unsqueeze(2)).flatten(1, 2)[:, :steps]


def _associative(decay: Tensor, value: Tensor, initial: Tensor) -> Tensor:
    """Scan in log(T) rounds by torch, which still keeps it under a private name."""
    try:
        from torch._higher_order_ops.associative_scan import associative_scan
    except ImportError as absent:
        raise HoldfastError(
            f"torch {torch.__version__} has no associative scan; take form='chunk'."
        ) from absent
    first = torch.addcmul(value[:, :1], decay[:, :1], initial.unsqueeze(1))
    value = torch.cat([first, value[:, 1:]], 1)
    return associative_scan(_combined, (decay, value), dim=1, combine_mode="generic")[1]


def _combined(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return left[0] * right[0], right[0] * left[1] + right[1]


def _scanned(decay: Tensor, value: Tensor, initial: Tensor, form: str, reverse: bool) -> Tensor:
    """One direction: as above, or h_t = decay_{t+1} * h_{t+1} + value_t from zero."""
    if form == "chunk" and takes("scan", value):
        flat = (of.reshape(*value.shape[:2], -1) for of in (decay, value))
        return ops.scan(*flat, initial.reshape(len(value), -1), reverse).view(value.shape)
    run = _chunk if form == "chunk" else _associative
    if not reverse:
        return run(decay, value, initial)
    later = torch.cat([torch.zeros_like(decay[:, :1]), decay[:, 1:].flip(1)], 1)
    return run(later, value.flip(1), torch.zeros_like(initial)).flip(1)


class _Scan(torch.autograd.Function):
    """Scan whose backward is a scan in reverse: only decays and states are kept for it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(decay: Tensor, value: Tensor, initial: Tensor, form: str, reverse: bool) -> Tensor:
        return _scanned(decay, value, initial, form, reverse)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        decay, _, initial, ctx.form, ctx.reverse = inputs
        ctx.save_for_backward(decay, initial, output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Differentiable operations only, so that second derivatives come by themselves."""
        decay, initial, states = ctx.saved_tensors
        start = torch.zeros_like(initial)
        grad_value = _Scan.apply(decay, grads[0], start, ctx.form, not ctx.reverse)
        grad_decay = grad_initial = None
        if ctx.needs_input_grad[0] and ctx.reverse:
            grad_decay = states * torch.cat([start.unsqueeze(1), grad_value[:, :-1]], 1)
        elif ctx.needs_input_grad[0]:
            grad_decay = grad_value * torch.cat([initial.unsqueeze(1), states[:, :-1]], 1)
        if ctx.needs_input_grad[2] and not ctx.reverse:
            grad_initial = decay[:, 0] * grad_value[:, 0]
        return grad_decay, grad_value, grad_initial, None, None
