"""A call of a module with a batch: its arguments, and parts of them along the samples."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from . import structure

Run = Callable[..., Any]


_running = [0]


def inside() -> bool:
    """Whether a call is being made in parts: what is called within is left alone."""
    return _running[0] > 0


@contextlib.contextmanager
def _inside() -> Iterator[None]:
    _running[0] += 1
    try:
        yield
    finally:
        _running[0] -= 1


class CannotSplit(Exception):
    """Why a call cannot be made in parts, in words for the user."""


class ChangesArguments(CannotSplit):
    """The call writes into its arguments, so that they are not what they were after a first try."""


class CallArguments:
    """The arguments of a call.

    The samples are the first dimension of the first tensor. Tensors and plain lists of that length
    are cut, everything else goes into each part as it is.
    """

    def __init__(
        self, module: nn.Module, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.module = module
        self.arguments = args, kwargs
        self.inputs = list(structure.tensors(self.arguments))
        first = next((t for t in self.inputs if t.ndim), None)
        if first is None:
            raise CannotSplit("no argument of the call is a tensor with samples")
        self.samples = first.shape[0]
        self.numbers = first.numel()
        self.device = first.device
        self.versions = [version(t) for t in self.inputs]
        self._run = run
        self._modes = _autocast(self.device)

    @property
    def signature(self) -> tuple[Any, ...]:
        """The same for calls whose results have the same form."""
        kinds = tuple((t.ndim, t.dtype, self.cut(t), t.requires_grad) for t in self.inputs)
        return (*kinds, self.module.training, torch.is_grad_enabled(), str(self._modes))

    @property
    def compiled(self) -> bool:
        """Whether the call runs compiled code, made for certain sizes and for gradients."""
        module = self.module
        return hasattr(module, "_orig_mod") or _compiled_in_place(module)

    def cut(self, tensor: Tensor) -> bool:
        """Whether it has one row for each sample."""
        return tensor.ndim > 0 and tensor.shape[0] == self.samples

    def part(
        self, begin: int, end: int, *, leaves: bool = False, copies: bool = False
    ) -> tuple[Any, list[Tensor]]:
        """Arguments for some of the samples, and the tensors in them.

        With ``leaves`` tensors that have a gradient are detached, so that theirs can be asked for;
        with ``copies`` they share no memory with the script's.
        """
        made: list[Tensor] = []

        def change(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value[begin:end] if len(value) == self.samples else value
            one = value.detach() if leaves else value
            if self.cut(value):
                one = one.narrow(0, begin, end - begin)
            if copies:
                one = one.detach().clone()
            if leaves and value.requires_grad:
                one = one.requires_grad_() if one is not value else one
            made.append(one)
            return one

        return structure.changed(self.arguments, change), made

    def run(self, arguments: Any, *, eager: bool = False) -> Any:
        """Call the module as the script has called it, under the same autocast."""
        args, kwargs = arguments
        with contextlib.ExitStack() as stack:
            stack.enter_context(_inside())
            for mode in self._modes:
                stack.enter_context(torch.autocast(**mode))
            if eager and hasattr(self.module, "_orig_mod"):
                return self.module._orig_mod(*args, **kwargs)  # type: ignore[operator]
            if eager and _compiled_in_place(self.module):
                return self.module._call_impl(*args, **kwargs)
            return self._run(self.module, *args, **kwargs)

    def untouched(self) -> bool:
        """Whether the tensors still hold what they held when the call was made."""
        return [version(t) for t in self.inputs] == self.versions


def version(tensor: Tensor) -> int:
    """Changes when a tensor is written in place."""
    return 0 if tensor.is_inference() else tensor._version


@contextlib.contextmanager
def random_state(state: tuple[Tensor, ...] | None, device: torch.device) -> Iterator[None]:
    """Run with an earlier RNG state, and put the present one back."""
    if state is None:
        yield
        return
    now = rng_of(device)
    _set(state, device)
    try:
        yield
    finally:
        _set(now, device)


def rng_of(device: torch.device) -> tuple[Tensor, ...]:
    """The RNG state of the host and of the device."""
    state = (torch.get_rng_state(),)
    return (*state, torch.cuda.get_rng_state(device)) if device.type == "cuda" else state


def _set(state: tuple[Tensor, ...], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if len(state) > 1:
        torch.cuda.set_rng_state(state[1], device)


def _autocast(device: torch.device) -> list[dict[str, Any]]:
    """The autocast modes that are on; casts of weights are not cached beyond a part."""
    return [
        {
            "device_type": kind,
            "dtype": torch.get_autocast_dtype(kind),
            "cache_enabled": False,
        }
        for kind in dict.fromkeys(("cpu", device.type))
        if torch.is_autocast_enabled(kind)
    ]


def _compiled_in_place(module: nn.Module) -> bool:
    return getattr(module, "_compiled_call_impl", None) is not None
