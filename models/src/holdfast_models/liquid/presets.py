"""Sizes and features under a name: ``holdfast train liquid --preset phase3``.

``phase1`` to ``phase4`` are the four acceptance runs of the specification; the others are small
enough for two CPU cores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PLASTIC = {"on": True, "meta": {"on": True}}
_PHASE = {  # the rate of the specification, and epochs as they are there
    "optimizer": {"lr": 1e-4},
    "steps": None,
}

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {
        "model": {"hidden_dim": 64, "liquid_units": 32, "spiking_units": 16, "embedding_dim": 64},
        "train": {"steps": 300},
    },
    "medium": {
        "model": {
            "num_layers": 4,
            "hidden_dim": 256,
            "liquid_units": 128,
            "spiking_units": 64,
            "embedding_dim": 256,
            "mamba": {"on": True},
        },
        "data": {"sequence_length": 256, "megabytes": 8.0, "tokenizer": "bpe"},
        "train": {"epochs": 2, "steps": None, "data": {"batch": 32}, "optimizer": {"lr": 1e-3}},
    },
    "vision": {
        "task": "vision",
        "model": {"hidden_dim": 64, "liquid_units": 32, "spiking_units": 16},
        "train": {"epochs": 10, "steps": None, "data": {"batch": 32}},
    },
    "robotics": {
        "task": "robotics",
        "model": {"hidden_dim": 64, "liquid_units": 32, "spiking_units": 16},
        "data": {"sequence_length": 64, "samples": 1000},
        "train": {"epochs": 10, "steps": None, "data": {"batch": 32}},
    },
    "phase1": {
        "model": {"embedding_dim": 768},
        "data": {"sequence_length": 64},
        "train": {**_PHASE, "epochs": 1, "clip": 0.5, "data": {"batch": 4}},
    },
    "phase2": {
        "model": {
            "hidden_dim": 256,
            "liquid_units": 128,
            "spiking_units": 64,
            "embedding_dim": 768,
        },
        "data": {"sequence_length": 128},
        "train": {**_PHASE, "epochs": 2, "clip": 1.0, "data": {"batch": 4}, "precision": "fp16"},
    },
    "phase3": {
        "model": {
            "num_layers": 4,
            "hidden_dim": 512,
            "liquid_units": 128,
            "spiking_units": 64,
            "embedding_dim": 768,
            "mamba": {"on": True},
        },
        "plasticity": _PLASTIC,
        "continual": {"on": True, "num_tasks": 2},
        "data": {"sequence_length": 256},
        "train": {**_PHASE, "epochs": 2, "clip": 1.0, "data": {"batch": 4}},
    },
    "phase4": {
        "model": {
            "num_layers": 8,
            "hidden_dim": 512,
            "liquid_units": 256,
            "spiking_units": 128,
            "embedding_dim": 768,
            "mamba": {
                "on": True,
                "state": 32,
                "gate": True,
                "gate_heads": 8,
                "cross_attention": True,
                "cross_heads": 16,
            },
        },
        "plasticity": _PLASTIC,
        "continual": {"on": True, "num_tasks": 5, "replay": True},
        "data": {"sequence_length": 256},
        "train": {**_PHASE, "epochs": 30, "clip": 1.0, "data": {"batch": 8}},
    },
}
