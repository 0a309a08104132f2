"""Load a checkpoint into plain PyTorch: the state as ``load_state_dict`` takes it.

state = holdfast.load_checkpoint("runs/2026-11-15-1204-train")
model.load_state_dict(state["model"])
optimizer.load_state_dict(state["optimizer"])
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError
from ..run.durable import TEMPORARY
from . import scaler_state
from .file import load
from .record import is_single
from .store import FOLDER, CheckpointStore
from .training_state import RNG

_EXTRA = "_extra_state"


def load_checkpoint(
    path: str | os.PathLike[str], *, device: str | torch.device = "cpu"
) -> dict[str, Any]:
    """Load a checkpoint as state dicts that plain PyTorch accepts; nothing is unpickled.

    Args:
        path: a checkpoint, a run folder or a folder of checkpoints; of a folder the newest good
            checkpoint is loaded.
        device: where the tensors go.

    Returns:
        ``model``, ``optimizer``, ``scheduler``, ``scaler`` where there is one of each; all of them
        under ``models`` and ``ema`` (by name), ``optimizers`` and ``schedulers`` (in order); what
        else was saved under ``others``; ``step``, the last step that the state includes; ``rng``,
        whose ``rng["torch"]`` is for ``torch.set_rng_state``.

    Example:
        >>> state = load_checkpoint("runs/2026-11-15-1204-train")  # doctest: +SKIP
        >>> model.load_state_dict(state["model"])  # doctest: +SKIP
        >>> optimizer.load_state_dict(state["optimizer"])  # doctest: +SKIP
    """
    tree, record = load(_file(Path(path)), device=device)
    return plain_state(tree, record)


def export(source: Path, target: Path) -> None:
    """Write a checkpoint as one file that ``torch.load`` reads with ``weights_only=True``.

    Without the RNG state of python and numpy, which that refuses.
    """
    state = load_checkpoint(source)
    state["rng"] = {key: value for key, value in state["rng"].items() if key in ("torch", "cuda")}
    temporary = target.with_name(f"{target.name}.{os.getpid()}{TEMPORARY}")
    try:
        torch.save(state, temporary)
        temporary.replace(target)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"cannot write {target}: {error}; choose another place") from error
    finally:
        temporary.unlink(missing_ok=True)


def plain_state(tree: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """What was loaded from a file, as state dicts."""
    # The guard names a state after its last step, a watch after the number of steps.
    steps = int(record.get("steps", int(record["step"]) + ("position" not in tree)))
    state: dict[str, Any] = {
        "step": steps - 1,
        "models": {name: _module(tree, "", name) for name in tree["models"]},
        "optimizers": [_optimizer(saved) for saved in tree["optimizers"]],
        "schedulers": list(tree["schedulers"]),
        "scaler": scaler_state.numbers(tree["scaler"]),
        "ema": {name: _average(tree, name) for name in tree["ema"]},
        "others": dict(tree["others"]),
        "rng": dict(tree.get(RNG, {})),
    }
    for one, all_ in (("model", state["models"].values()), ("optimizer", state["optimizers"])):
        if len(all_) == 1:
            state[one] = next(iter(all_))
    if len(state["schedulers"]) == 1:
        state["scheduler"] = state["schedulers"][0]
    return state


def _file(path: Path) -> Path:
    """The checkpoint that a path means."""
    if is_single(path):
        return path
    folder = path / FOLDER if (path / FOLDER).is_dir() else path
    store = CheckpointStore(folder)
    ranks = sorted({entry.rank for entry in store.entries()})
    entry = store.latest(rank=ranks[0]) if ranks else None
    if entry is None:
        raise CheckpointError(
            f"there is no good checkpoint in {folder}; see: holdfast checkpoint ls {path}"
        )
    return entry.path


def _average(tree: Mapping[str, Any], name: str) -> Any:
    saved = tree["ema"][name]
    is_module = isinstance(saved, Mapping) and all(isinstance(key, str) for key in saved)
    return _module(tree, "ema.", name) if is_module else saved


def _module(tree: Mapping[str, Any], part: str, name: str) -> dict[str, Any]:
    """The state dict of a module: persistent buffers only, tied tensors under all their names."""
    saved: Mapping[str, Any] = tree["ema" if part else "models"][name]
    where = f"{part}{name}."
    loose = set(tree.get("loose", ()))
    found = {
        key: value
        for key, value in saved.items()
        if value is not None and (where + key not in loose or key.rpartition(".")[2] == _EXTRA)
    }
    tied = [(k, v) for k, v in tree.get("tied", {}).items() if k.startswith(where)]
    before = -1
    while len(found) > before:  # what is tied may hold something that is tied
        before = len(found)
        for other, first in tied:
            for end, value in _named(tree, found, where, first):
                found[other.removeprefix(where) + end] = value
    return found


def _named(
    tree: Mapping[str, Any], found: Mapping[str, Any], where: str, first: str
) -> Iterator[tuple[str, Any]]:
    """The values saved as ``first`` or below it, by the rest of their names."""
    if first.startswith(where) or first + "." == where:
        values, key = found, first.removeprefix(where.removesuffix(".")).removeprefix(".")
    else:  # in another model
        model, _, key = first.partition(".")
        values = tree["models"].get(model, {})
    for name, value in list(values.items()):
        if name == key or name.startswith(f"{key}." if key else ""):
            yield name.removeprefix(key), value


def _optimizer(saved: Mapping[str, Any]) -> Any:
    """The state dict of an optimizer; torch wants the numbers of its parameters by group."""
    if "own" in saved:
        return saved["own"]
    sizes = saved.get("sizes") or [len(saved["parameters"])]
    groups: list[dict[str, Any]] = []
    first = 0
    for size, options in zip(sizes, saved["groups"], strict=True):
        groups.append({**options, "params": list(range(first, first + size))})
        first += size
    return {"state": dict(saved["state"]), "param_groups": groups}
