"""Compute a loss once more on one rank of several: the others must not be needed for it.

``DistributedDataParallel`` is left out of it, the model inside computes the same. Any collective
that is met even so is refused before it waits: of the user's own code, of synchronised batch norms.
Sharded models gather their weights for every forward pass, so that they cannot be computed alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from ...probes.model_state import live_modules
from ...probes.ranks import ranks
from ...source.slices import NotRepeatable

_TALK = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


class _Refuse(TorchDispatchMode):
    """Raises where ranks would talk to each other."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace in _TALK:
            raise NotRepeatable(f"{func} needs the other ranks")
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def by_itself() -> Iterator[None]:
    """While a loss is computed again; nothing to do where there is one rank."""
    if ranks() == 1:
        yield
        return
    modules = live_modules()
    if any(map(_gathers, modules)):
        raise NotRepeatable("the weights are sharded over the ranks")
    wrappers = [m for m in modules if isinstance(m, DistributedDataParallel)]
    for wrapper in wrappers:
        # An attribute of the object comes before the method of its class.
        vars(wrapper)["forward"] = wrapper.module.forward
    try:
        with _Refuse():
            yield
    finally:
        for wrapper in wrappers:
            vars(wrapper).pop("forward", None)


def _gathers(module: nn.Module) -> bool:
    """Whether a module has its weights gathered, by FSDP2 or FSDP."""
    names = {cls.__name__ for cls in type(module).__mro__}
    return not names.isdisjoint({"FSDPModule", "FullyShardedDataParallel"})
