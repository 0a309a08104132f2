"""States of random number generators as plain data, there and back: objects, and the process."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...checkpoint import rng
from .nodes import KIND, Node

CLASSES = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)


def take(value: Any) -> Node:
    """The node of a generator."""
    if isinstance(value, torch.Generator):
        return {KIND: "generator", "v": value.get_state().numpy().tobytes()}
    if isinstance(value, random.Random):
        state: Any = value.getstate()
    elif isinstance(value, np.random.Generator):
        state = value.bit_generator.state
    else:
        state = value.get_state(legacy=False)
    return {KIND: "random", "v": _listed(state)}


def put_back(live: Any, node: Node) -> None:
    """Have a generator go on from its node."""
    if node[KIND] == "generator":
        torch.Generator.set_state(live, _tensor(node["v"]))
        return
    state = _unlisted(node["v"])
    if isinstance(live, random.Random):
        random.Random.setstate(live, state)
    elif isinstance(live, np.random.Generator):
        live.bit_generator.state = state
    else:
        live.set_state(state)


def _listed(state: Any) -> Any:
    """The state of a generator in plain containers."""
    if isinstance(state, tuple):
        return {KIND: "tuple", "v": [_listed(one) for one in state]}
    if isinstance(state, dict):
        return {KIND: "dict", "v": [[key, _listed(one)] for key, one in state.items()]}
    return state.tolist() if isinstance(state, np.ndarray) else state


def _unlisted(state: Any) -> Any:
    """The same as it was."""
    if isinstance(state, Mapping) and state.get(KIND) == "tuple":
        return tuple(_unlisted(one) for one in state["v"])
    if isinstance(state, Mapping) and state.get(KIND) == "dict":
        return {key: _unlisted(one) for key, one in state["v"]}
    return np.asarray(state, dtype=np.uint32) if isinstance(state, list) else state


def of_process() -> dict[str, Any]:
    """The RNG state of this process in values that can be compared."""
    state = rng.state()
    numbers = state["numpy"]
    inner = {
        key: one.tolist() if hasattr(one, "tolist") else one
        for key, one in numbers["state"].items()
    }
    reported = {
        "python": state["python"],
        "torch": state["torch"].numpy().tobytes(),
        "numpy": {**numbers, "state": inner},
    }
    if "cuda" in state:
        reported["cuda"] = [one.numpy().tobytes() for one in state["cuda"]]
    return reported


def put_into_process(reported: Mapping[str, Any]) -> None:
    """Put back what ``of_process`` gave."""
    numbers = reported["numpy"]
    inner = {
        key: np.asarray(one, dtype=np.uint32) if isinstance(one, list) else one
        for key, one in numbers["state"].items()
    }
    rng.put_back(
        {
            "python": reported["python"],
            "numpy": {**numbers, "state": inner},
            "torch": _tensor(reported["torch"]),
            "cuda": [_tensor(one) for one in reported.get("cuda", ())],
        }
    )


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
