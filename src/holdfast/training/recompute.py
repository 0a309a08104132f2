"""Gradient checkpointing by name: parts of a model whose activations are computed again.

    recompute(model, ("blocks.*",))

Backward then needs the activations of one block instead of all, for one more forward pass through
each. Nothing else changes: the gradients are the same to the bit, dropout included, and so are
the names of the weights.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..errors import SettingsError

# They hold modules and are never called themselves.
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def recompute(model: nn.Module, patterns: tuple[str, ...]) -> list[str]:
    """Compute the activations of these submodules again in backward, and return their names.

    Args:
        model: changed in place; ``keep_activations`` changes it back.
        patterns: names of submodules; ``*``, ``?`` and ``[...]`` stand for parts of a name
            between two dots. Of modules inside each other the outermost is taken.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    >>> recompute(model, ("[02]",))
    ['0', '2']
    >>> recompute(model, ("layers.*",))
    Traceback (most recent call last):
    holdfast.errors.SettingsError: recompute: no module matches 'layers.*'; there are *
    """
    modules = {name: module for name, module in model.named_modules() if name}
    wanted = {name for pattern in patterns for name in _matching(pattern, modules)}
    outermost = [name for name in modules if name in wanted and not _parents(name) & wanted]
    for name in outermost:
        module = modules[name]
        if not isinstance(module.__dict__.get("forward"), _Recomputed):
            module.forward = _Recomputed(module)
    return outermost


def keep_activations(model: nn.Module) -> list[str]:
    """Undo ``recompute``; the names of the modules that are as before."""
    names: list[str] = []
    for name, module in model.named_modules():
        found = module.__dict__.get("forward")
        if isinstance(found, _Recomputed):
            del module.forward
            if found.inner is not None:
                module.forward = found.inner
            names.append(name)
    return names


class _Recomputed:
    """Stands for the ``forward`` of one module; a class, so that the module can be copied."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        # Somebody else may have put a function of their own there.
        self.inner: Callable[..., Any] | None = module.__dict__.get("forward")

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        forward = self.inner or type(self.module).forward.__get__(self.module)
        if not torch.is_grad_enabled():
            return forward(*inputs, **named)
        return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=True, **named)


def _matching(pattern: str, modules: dict[str, nn.Module]) -> list[str]:
    parts = pattern.split(".")
    found = [name for name in modules if _fits(name.split("."), parts)]
    if not found:
        raise SettingsError(
            f"recompute: no module matches {pattern!r}; {_nearest(pattern, modules)}"
        )
    called = [name for name in found if not isinstance(modules[name], _CONTAINERS)]
    if not called:
        kind = type(modules[found[0]]).__name__
        raise SettingsError(
            f"recompute: {pattern!r} is a {kind}, which is never called itself; "
            f"write {f'{pattern}.*'!r}"
        )
    return called


def _fits(name: list[str], parts: list[str]) -> bool:
    return len(name) == len(parts) and all(map(fnmatchcase, name, parts))


def _parents(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[:i]) for i in range(1, len(parts))}


def _nearest(pattern: str, modules: dict[str, nn.Module]) -> str:
    """Names as a user would write them: all of a numbered list at once."""
    names = list(dict.fromkeys(re.sub(r"(?<![^.])\d+(?![^.])", "*", name) for name in modules))
    close = difflib.get_close_matches(pattern, names, n=3)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    top = [name for name in names if "." not in name] or ["none"]
    return f"there are {', '.join(top[:8])}"
