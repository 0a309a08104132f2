"""What a model is: its size, where it comes from, and what can be made of it."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import torch
from torch import nn

from ..assembly import make_model
from ..loading import load_run
from ..run_settings import AnyRun

_USES = {
    "reg": "holdfast xec export RUN: ONNX; holdfast xec predict RUN FILES",
    "mae": "holdfast xec predict RUN FILES",
    "inp": "holdfast xec export RUN: .pt2; holdfast xec predict REG FILES --inpainter RUN",
}
_NAMES = {"reg": "regressor", "mae": "mae", "inp": "inpainter"}


def described_run(source: str | os.PathLike[str]) -> dict[str, Any]:
    """Of a run folder or a checkpoint."""
    loaded = load_run(source)
    step = _step_of(loaded.checkpoint.name)
    found = {"run": str(loaded.folder), "checkpoint": loaded.checkpoint.name}
    if step is not None:
        found["step"] = str(step)
    return found | described(loaded.settings, loaded.model)


def described_model(settings: AnyRun) -> dict[str, Any]:
    """Of settings alone; no memory is taken."""
    with torch.device("meta"):
        return described(settings, make_model(settings))


def _uses(kind: str) -> str:
    return (
        f"holdfast train xec.{kind} --resume RUN: goes on; init.weights=RUN of xec.{kind}: its "
        "weights, trained anew; init.encoder=RUN of xec.reg, xec.mae or xec.inp: its encoder "
        f"alone, with new heads; {_USES[kind]}"
    )


def described(settings: AnyRun, model: nn.Module) -> dict[str, Any]:
    """The facts, by name."""
    return {
        "kind": _NAMES[settings.kind],
        "tokens": ", ".join(model.encoder.tokens),  # type: ignore[union-attr,arg-type]
        "parameters": _parts(model),
        "can be used": _uses(settings.kind),
        "settings": dataclasses.asdict(settings),
    }


def _parts(model: nn.Module) -> dict[str, int]:
    """Parameters of the parts that the specification counts."""
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        first, second, *_ = [*name.split("."), ""]
        part = f"{first}.{second}" if first in ("encoder", "heads", "decoders") else first
        counts[part] = counts.get(part, 0) + parameter.numel()
    encoder = sum(count for part, count in counts.items() if part.startswith("encoder."))
    trained = sum(one.numel() for one in model.parameters() if one.requires_grad)
    return counts | {"encoder": encoder, "total": sum(counts.values()), "trained": trained}


def _step_of(name: str) -> int | None:
    digits = "".join(c if c.isdecimal() else " " for c in name).split()
    return int(digits[0]) if digits else None
