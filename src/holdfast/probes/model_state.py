"""Names of layers, and whether parameters and buffers are finite.

An unmodified script never tells us its model. The modules that own the optimizer's parameters
are found among those that torch has told us of while they were made or, for copies, among all live
objects; only weak references to them are kept.
"""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn

from ..shards import is_sharded, local


def live_modules() -> list[nn.Module]:
    """Every module alive in the process.

    By ``type(o)`` and not ``isinstance``: proxies lie about their class, and asking them can
    import half a library. The classes are collected first, so that no line of Python is run for
    each of some hundred thousand objects.
    """
    objects, classes = gc.get_objects(), {nn.Module, *_heirs(nn.Module)}
    try:
        return list(compress(objects, map(classes.__contains__, map(type, objects))))
    except Exception:  # a class of the script's that cannot be hashed
        return [o for o in objects if issubclass(type(o), nn.Module)]


def _heirs(kind: type[Any]) -> set[type[Any]]:
    """All classes that are derived from one."""
    found, todo = set[type[Any]](), [kind]
    while todo:
        new = set(type.__subclasses__(todo.pop())) - found
        found |= new
        todo += new
    return found


def roots_of(parameters: Sequence[Tensor], modules: Iterable[nn.Module]) -> list[nn.Module]:
    """The outermost modules that own some of ``parameters``, the largest share first."""
    modules = list(modules)
    wanted = {id(p) for p in parameters}
    inner = {id(child) for m in modules for child in m._modules.values() if child is not None}
    shares: list[tuple[int, nn.Module]] = []
    for module in modules:
        if id(module) in inner:
            continue
        share = sum(1 for p in module.parameters() if id(p) in wanted)
        if share:
            shares.append((share, module))
    shares.sort(key=lambda pair: -pair[0])
    return [module for _, module in shares]


def clean(name: str) -> str:
    """A name as the user wrote it, without what wrappers put in front."""
    name = name.replace("_orig_mod.", "").replace("_fsdp_wrapped_module.", "")
    return name.removeprefix("module.")


def layer_names(parameters: Sequence[Tensor], roots: Iterable[nn.Module]) -> list[str]:
    """One name per parameter; those of no module are called by position and shape."""
    found: dict[int, str] = {}
    for root in roots:
        for name, parameter in root.named_parameters():
            found.setdefault(id(parameter), clean(name))
    return [
        found.get(id(p), f"parameter {i} {'x'.join(map(str, p.shape)) or 'scalar'}")
        for i, p in enumerate(parameters)
    ]


class Buffer:
    """A place in a module that holds a buffer; the tensor in it may be replaced any time."""

    __slots__ = ("_module", "key", "name", "place", "running")

    def __init__(self, module: nn.Module, key: str, name: str) -> None:
        self._module = weakref.ref(module)
        self.key = key
        self.name = name
        self.place = (id(module), key)
        # Native batch norm changes its running statistics without telling the version counter.
        self.running = isinstance(module, nn.modules.batchnorm._NormBase)

    @property
    def tensor(self) -> Tensor | None:
        """The buffer as it is now."""
        module = self._module()
        return None if module is None else module._buffers.get(self.key)

    @property
    def holder(self) -> dict[str, Tensor | None] | None:
        """The dictionary of its module that has it; None where the module is gone."""
        module = self._module()
        return None if module is None else module._buffers


def buffers_of(roots: Iterable[nn.Module]) -> list[Buffer]:
    """Every buffer below ``roots``, once.

    Those that are spread over ranks are left to themselves: they are tables, not statistics.
    """
    found: list[Buffer] = []
    seen: set[int] = set()
    for root in roots:
        for path, module in root.named_modules():
            for key, tensor in module._buffers.items():
                if tensor is None or is_sharded(tensor):
                    continue
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    found.append(Buffer(module, key, clean(f"{path}.{key}" if path else key)))
    return found


def nonfinite_on_host(tensors: Sequence[Tensor]) -> list[int]:
    """Positions of CPU tensors that hold NaN or infinity."""
    bad: list[int] = []
    floating = [(i, local(t).detach()) for i, t in enumerate(tensors) if t.is_floating_point()]
    if not floating:
        return bad
    # The L2 norm first, for the same reason as with gradients: it is cheap on the CPU.
    norms = torch._foreach_norm([t for _, t in floating])
    for (i, t), norm in zip(floating, norms, strict=True):
        if not math.isfinite(norm.item()) and not bool(torch.isfinite(t).all()):
            bad.append(i)
    return bad


def largest_on_device(tensors: Sequence[Tensor]) -> Tensor:
    """Maximum norm per tensor as one fp32 vector; NaN and infinity show, nothing overflows."""
    parts = [local(t).detach() for t in tensors]
    # Of nothing there is no maximum: a rank may hold no row of a tensor.
    parts = [t if t.numel() else t.new_zeros(1) for t in parts]
    return torch.stack([n.float() for n in torch._foreach_norm(parts, float("inf"))])
