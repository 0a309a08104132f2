"""The random numbers a run draws next: python, numpy, torch on the CPU and on every CUDA device.

>>> import random, torch
>>> before = state()
>>> first = random.random(), torch.rand(1).item()
>>> put_back(before)
>>> (random.random(), torch.rand(1).item()) == first
True
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def host_state() -> dict[str, Any]:
    """Where the generators of the host stand; those of a device cannot be asked amid a capture."""
    return {
        "python": random.getstate(),
        # The long form: the short one exists for one kind of generator only.
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
    }


def state() -> dict[str, Any]:
    """Where every generator stands, as a tree; nothing is drawn and no device is waited for."""
    tree = host_state()
    # Asking a device that nobody has used would start it.
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        tree["cuda"] = torch.cuda.get_rng_state_all()
    return tree


def put_back(tree: Mapping[str, Any]) -> None:
    """Set every generator that the tree knows and this machine has."""
    random.setstate(tree["python"])
    np.random.set_state(tree["numpy"])
    # A view is read from the start of the memory it lies in: hand over tensors of their own.
    torch.set_rng_state(tree["torch"].cpu().clone())
    here = torch.cuda.device_count()
    for device, one in enumerate(tree.get("cuda", ())[:here]):
        torch.cuda.set_rng_state(one.cpu().clone(), device)


def missing(tree: Mapping[str, Any]) -> str:
    """Why this machine cannot draw the same numbers; empty when it can."""
    saved, here = len(tree.get("cuda", ())), torch.cuda.device_count()
    if saved <= here:
        return ""
    return f"it holds the random state of {saved} CUDA devices, this machine has {here}"


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether nothing was drawn between two states."""
    if one.keys() != other.keys():
        return False
    return all(_equal(value, other[key]) for key, value in one.items())


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other
