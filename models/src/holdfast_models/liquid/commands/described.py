"""What a run is: sizes, parameters, features, and how its units behave on held-out data."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from holdfast import HoldfastError

from ..data.tensor_rows import first_batch
from ..loading import Loaded
from ..model.model import inputs_of
from ..run_settings import LiquidSettings


def described(loaded: Loaded) -> dict[str, Any]:
    """The facts, by name."""
    net, settings = loaded.net, loaded.settings
    found: dict[str, Any] = {
        "run": str(loaded.run),
        "checkpoint": loaded.checkpoint.name,
        "task": settings.task,
        "tokenizer": None if loaded.tokenizer is None else loaded.tokenizer.name,
        "sizes": {
            "inputs": net.sizes.inputs,
            "outputs": net.sizes.outputs,
            "layers": settings.model.num_layers,
            "width": settings.model.hidden_dim,
            "liquid units": settings.model.liquid_units,
            "spiking units": settings.model.spiking_units,
        },
        "features": _features(settings),
        "parameters": _parts(net),
    }
    try:
        found["blocks"] = _measured(loaded)
    except HoldfastError as error:  # texts that were trained on may be gone
        found["not measured"] = str(error)
    return found


def _features(settings: LiquidSettings) -> dict[str, str]:
    model, mamba = settings.model, settings.model.mamba
    plastic, tasks = settings.plasticity, settings.continual
    found: dict[str, tuple[bool, object]] = {
        "liquid": (True, model.liquid_backbone),
        "spike steps": (not model.spikes.persist, model.spikes.steps),
        "attention heads": (model.attention.on, model.attention.heads),
        "mamba": (mamba.on, f"{mamba.kind} {mamba.mode}"),
        "gate heads": (mamba.on and mamba.gate, mamba.gate_heads),
        "cross-attention heads": (mamba.on and mamba.cross_attention, mamba.cross_heads),
        "plasticity": (plastic.on, plastic.rule),
        "meta-plasticity": (plastic.on and plastic.meta.on, "on"),
        "tasks": (tasks.on, tasks.num_tasks),
        "consolidation": (tasks.on and tasks.consolidation, tasks.consolidation_strength),
        "replay": (tasks.on and tasks.replay, tasks.replay_strategy),
    }
    return {name: str(how) if on else "off" for name, (on, how) in found.items()}


def _parts(net: nn.Module) -> dict[str, int]:
    """Parameters of each part, those of all blocks together."""
    counts: dict[str, int] = {}
    for name, parameter in net.named_parameters():
        where = [word for word in name.split(".")[:-1] if not word.isdecimal()]
        # A block is made of parts, and the path of Mamba in it again.
        deep = 1 if where[0] not in ("blocks", "front") else 3 if "path" in where else 2
        part = ".".join(where[:deep])
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts | {"total": sum(counts.values())}


@torch.no_grad()
def _measured(loaded: Loaded) -> dict[str, dict[str, float]]:
    """Of each block: time constants in steps, rates, and how far a gate is open."""
    batch = first_batch(loaded.opened().tasks[0].validation, 8)
    inside = loaded.net(*inputs_of(loaded.settings.task, batch)).inside
    taus = loaded.net.time_constants([one.driven_BTU for one in inside])
    found: dict[str, dict[str, float]] = {}
    for number, (one, tau) in enumerate(zip(inside, taus, strict=True)):
        rate_K, ordered = one.rate_BTK.flatten(0, 1).mean(0), tau.flatten().sort().values
        block = {f"tau {n} %": ordered[n * (len(ordered) - 1) // 100] for n in (5, 50, 95)}
        block |= {"firing rate": rate_K.mean(), "silent units": (rate_K == 0).float().mean()}
        if one.opening_BTG is not None:
            block["gate"] = one.opening_BTG.mean()
        found[f"block {number}"] = {name: float(f"{x:.4g}") for name, x in block.items()}
    return found
