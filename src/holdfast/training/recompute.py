"""Gradient checkpointing by name: parts of a model whose activations are computed again.

    recompute(model, ("blocks.*",))

Backward then needs the activations of one block instead of all, for one more forward pass through
each. Nothing else changes: the gradients are the same to the bit, dropout included, and so are
the names of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .module_names import modules_named, parents


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
    wanted = modules_named(model, patterns, "recompute")
    outermost = [name for name in wanted if not parents(name) & wanted.keys()]
    for name in outermost:
        module = wanted[name]
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
