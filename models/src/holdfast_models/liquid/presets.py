"""Sizes and features under a name: ``holdfast train liquid --preset phase3``.

``phase1`` to ``phase4`` are the four acceptance runs of the specification; the others are small
enough for two CPU cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PLASTIC = {"on": True, "meta": {"on": True}}
_MAMBA = {"on": True}
_FULL = {  # as phase 4 has it
    **_MAMBA, "state": 32, "gate": True, "gate_heads": 8, "cross_attention": True,
    "cross_heads": 16,
}  # fmt: skip


def _model(width: int, liquid: int, spiking: int, **more: Any) -> dict[str, Any]:
    """Widths of the blocks, of their liquid cells and spiking units, and the rest by name."""
    return {"hidden_dim": width, "liquid_units": liquid, "spiking_units": spiking, **more}


def _phase(epochs: int, batch: int = 4, clip: float = 1.0, **more: Any) -> dict[str, Any]:
    """The rate of the specification, and epochs as they are there."""
    counted = {"steps": None, "epochs": epochs, "data": {"batch": batch}}
    return {"optimizer": {"lr": 1e-4}, "clip": clip, **counted, **more}


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"model": _model(64, 32, 16, embedding_dim=64), "train": {"steps": 300}},
    "medium": {
        "model": _model(256, 128, 64, num_layers=4, embedding_dim=256, mamba=_MAMBA),
        "data": {"sequence_length": 256, "megabytes": 8.0, "tokenizer": "bpe"},
        "train": {"epochs": 2, "steps": None, "data": {"batch": 32}, "optimizer": {"lr": 1e-3}},
    },
    "vision": {
        "task": "vision",
        "model": _model(64, 32, 16),
        "train": {"epochs": 10, "steps": None, "data": {"batch": 32}},
    },
    "robotics": {
        "task": "robotics",
        "model": _model(64, 32, 16),
        "data": {"sequence_length": 64, "samples": 1000},
        "train": {"epochs": 10, "steps": None, "data": {"batch": 32}},
    },
    "phase1": {
        "model": {"embedding_dim": 768},
        "data": {"sequence_length": 64},
        "train": _phase(1, clip=0.5),
    },
    "phase2": {
        "model": _model(256, 128, 64, embedding_dim=768),
        "data": {"sequence_length": 128},
        "train": _phase(2, precision="fp16"),
    },
    "phase3": {
        "model": _model(512, 128, 64, num_layers=4, embedding_dim=768, mamba=_MAMBA),
        "plasticity": _PLASTIC,
        "continual": {"on": True, "num_tasks": 2},
        "data": {"sequence_length": 256},
        "train": _phase(2),
    },
    "phase4": {
        "model": _model(512, 256, 128, num_layers=8, embedding_dim=768, mamba=_FULL),
        "plasticity": _PLASTIC,
        "continual": {"on": True, "num_tasks": 5, "replay": True},
        "data": {"sequence_length": 256},
        "train": _phase(30, batch=8),
    },
}
