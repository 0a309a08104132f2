"""Counts that explain a slowdown: hooks, allocator retries."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from ...probes.memory import counters


def registered_on(models: Iterable[nn.Module]) -> int:
    """How many hooks there are on some models and their weights, and modules in them."""
    modules = [module for model in models for module in model.modules()]
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules)
    hooks += sum(len(m._backward_hooks) for m in modules)
    weights = [weight for m in modules for weight in m._parameters.values() if weight is not None]
    hooks += sum(len(weight._backward_hooks or ()) for weight in weights)
    return len(modules) + hooks


def retries() -> int:
    """How often the device's allocator has run out so far; 0 without a device."""
    return int(counters().get("num_alloc_retries", 0)) if torch.cuda.is_initialized() else 0
