"""What a run begins with, on the channel ``init``: parameters, their ranges, the seed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from . import channels
from .seeding import SeedSettings

_init = channels.get("init")


def tell_initial_state(model: nn.Module, seed: SeedSettings) -> None:
    """One line on the whole, and one on each part of the model; nothing while the channel is off.

    Args:
        model: before the first step, and before a checkpoint is loaded into it.
        seed: what it was made with.
    """
    if not _init.on:
        return
    _init(_whole, model, seed, key="whole")
    own = list(model.parameters(recurse=False))
    parts = [("own", own)] if own else []
    parts += [(name, list(part.parameters())) for name, part in model.named_children()]
    for name, parameters in parts:
        if parameters:
            _init(_part, name, parameters, key=name)


def parameter_counts(model: nn.Module) -> dict[str, int]:
    """How many numbers a model has, and how many of them are trained."""
    parameters = list(model.parameters())
    trained = sum(one.numel() for one in parameters if one.requires_grad)
    return {"parameters": sum(one.numel() for one in parameters), "trained_parameters": trained}


def _whole(model: nn.Module, seed: SeedSettings) -> str:
    parameters, counts = list(model.parameters()), parameter_counts(model)
    size = sum(one.numel() * one.element_size() for one in parameters)
    exactly = ", deterministic" if seed.deterministic else ""
    return (
        f"{type(model).__name__}: {counts['parameters']:,} parameters, "
        f"{counts['trained_parameters']:,} of them trained, {size / 1e6:.1f} MB; "
        f"seed {seed.seed}{exactly}"
    )


@torch.no_grad()
def _part(name: str, parameters: Sequence[Tensor]) -> str:
    values = torch.cat([one.detach().float().flatten() for one in parameters])
    return (
        f"{name}: {values.numel():,} parameters in {len(parameters)} tensors, from "
        f"{float(values.min()):.3g} to {float(values.max()):.3g}, "
        f"standard deviation {float(values.std(correction=0)):.3g}"
    )
