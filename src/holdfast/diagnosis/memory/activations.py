"""Activation memory of a forward pass, module by module, counted on meta tensors.

For a run that went out of memory. Its last call of the model is in the traceback, arguments
and all; it is made once more with tensors that have a shape and no content, and what autograd
would keep is counted where it is kept.
"""

from __future__ import annotations

import contextlib
import io
import sys
import traceback
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.utils import _pytree as pytree

_CALLS = ("_wrapped_call_impl", "_call_impl")
# Modules from which on nobody waits for the answer.
_MOST = 5000


@dataclass(frozen=True, slots=True)
class CalledModel:
    """A model and what it was called with."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inner: nn.Module
    """The module that was at work."""

    @property
    def batch(self) -> int:
        """Size of the first dimension of what goes in; 0 where nothing has one."""
        leaves: list[Any] = pytree.tree_leaves((self.args, self.kwargs))
        sizes = [leaf.shape[0] for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()]
        return int(sizes[0]) if sizes else 0


def last_call(found: TracebackType | None) -> CalledModel | None:
    """The outermost call of a model on the way to an error."""
    calls: list[tuple[nn.Module, dict[str, Any]]] = []
    for frame, _ in traceback.walk_tb(found):
        known = frame.f_locals if frame.f_code.co_name in _CALLS else {}
        if isinstance(module := known.get("self"), nn.Module):
            calls.append((module, known))
    for module, known in calls:
        if next(module.parameters(), None) is not None:
            args, kwargs = tuple(known.get("args", ())), dict(known.get("kwargs", {}))
            return CalledModel(module, args, kwargs, inner=calls[-1][0])
    return None


def kept(call: CalledModel) -> tuple[dict[str, int], int]:
    """Bytes that autograd keeps, by the name of the module, outputs included; and the outputs.

    Raises whatever the model does on tensors without content, where it asks for their values.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    names = {id(module): name for name, module in call.model.named_modules()}
    if len(names) > _MOST:
        return {}, 0
    mode, sizes, stack = FakeTensorMode(), dict[str, int](), list[nn.Module]()
    outputs = 0

    def fake(value: Any) -> Any:
        return mode.from_tensor(value) if isinstance(value, Tensor) else value

    own = dict(call.model.named_parameters(remove_duplicate=False))
    own |= dict(call.model.named_buffers(remove_duplicate=False))
    own = {name: fake(tensor) for name, tensor in own.items()}
    seen = {tensor.untyped_storage()._cdata for tensor in own.values()}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            name = names.get(id(stack[-1]), "") if stack else ""
            sizes[name] = sizes.get(name, 0) + storage.nbytes()
        return tensor

    def leaves(*_: Any) -> None:
        stack.pop()

    args, kwargs = pytree.tree_map(fake, (call.args, call.kwargs))
    handles = [
        hooks.register_module_forward_pre_hook(lambda module, _: stack.append(module)),
        hooks.register_module_forward_hook(leaves),
    ]
    try:
        with (
            mode,
            torch.enable_grad(),
            _without_compiling(),
            torch.autograd.graph.saved_tensors_hooks(pack, _same),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            made = torch.func.functional_call(call.model, own, args, kwargs)
            for output in pytree.tree_leaves(made):
                if isinstance(output, Tensor):
                    outputs += pack(output).untyped_storage().nbytes()
    finally:
        for handle in handles:
            handle.remove()
    return sizes, outputs


def _without_compiling() -> AbstractContextManager[Any]:
    """A compiled model is called as it is; without a compiler none is imported for that."""
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")


def _same(tensor: Tensor) -> Tensor:
    return tensor
