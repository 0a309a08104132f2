"""Weights from one run into a model of another: what fits, what does not and why.

An encoder goes from any of the three models to any other; whole weights go to the same model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from holdfast import HoldfastError
from holdfast.training import load_weights

from .loading import saved_run
from .run_settings import AnyRun, InpainterRun, RegressorRun

_ENCODER = "encoder."
# What the weights of an encoder depend on, or were learned with; anything else may differ.
_SHAPING = (
    "outer_mode", "outer_fine_pool", "encoder_dim", "feedforward", "num_fusion_layers", "hex_dim",
    "pool",
)  # fmt: skip
_MEANING = ("log_transform", "against_light", "offset", "scale")  # of what a head predicts


def apply_init(model: nn.Module, settings: AnyRun) -> list[str]:
    """Begin with the weights that ``settings.init`` names; lines for people."""
    source = check_init(settings)
    if source is None:
        return []
    part = "" if settings.init.encoder is None else _ENCODER
    checkpoint = load_weights(model, source, part=part)
    own = [name.startswith(part) for name in model.state_dict()]
    return [f"{checkpoint}: {sum(own)} tensors loaded, {len(own) - sum(own)} new"]


def check_init(settings: AnyRun) -> str | None:
    """The run or checkpoint that ``settings.init`` names, if any; without its weights.

    Raises:
        HoldfastError: it is none, or was made or fed differently; every such setting is named.
    """
    init = settings.init
    if init.encoder is not None and init.weights is not None:
        raise HoldfastError(
            "init.encoder and init.weights are both given; the weights hold an encoder already"
        )
    source = init.encoder if init.weights is None else init.weights
    if source is None:
        return None
    saved, _ = saved_run(source)
    was, now = saved.kind, settings.kind
    if init.weights is not None and was != now:
        raise HoldfastError(
            f"init.weights={source} is a run of xec.{was}, not of xec.{now}; "
            f"its encoder alone can be used: set init.encoder={source}"
        )
    _refuse_differences(source, saved, settings)
    if init.weights is not None:
        _refuse_other_meanings(source, saved, settings)
    return source


def normalization_differences(one: AnyRun, other: AnyRun) -> list[str]:
    """The keys in which two runs differ in how they read events."""
    keys = tuple(vars(one.normalization))
    found = _differing("normalization", one.normalization, other.normalization, keys)
    return found + _differing("data", one.data, other.data, ("npho_branch", "time_branch"))


def _refuse_differences(source: str, saved: AnyRun, settings: AnyRun) -> None:
    found = _differing("model", saved.model, settings.model, _SHAPING, "run", "now")
    if found:
        raise HoldfastError(
            f"the encoder of {source} does not fit: {', '.join(found)}; set the model as it was"
        )
    if settings.init.allow_norm_mismatch:
        return
    found = normalization_differences(saved, settings)
    if found:
        raise HoldfastError(
            f"{source} read its events differently: {', '.join(found)}; set them alike, or "
            "init.allow_norm_mismatch=true where you know why"
        )


def _refuse_other_meanings(source: str, saved: AnyRun, settings: AnyRun) -> None:
    """The numbers that heads learned to give have to be taken for the same quantities."""
    found: list[str] = []
    if isinstance(saved, RegressorRun) and isinstance(settings, RegressorRun):
        now = settings.tasks.active()
        for name, was in saved.tasks.active().items():
            task = now.get(name, was)
            found += _differing(f"tasks.{name}", was, task, _MEANING, "run", "now")
    elif isinstance(saved, InpainterRun):
        keys = ("against_neighbours",)
        found += _differing("model", saved.model, settings.model, keys, "run", "now")
    if found:
        raise HoldfastError(
            f"the heads of {source} predict something else: {', '.join(found)}; set them as they "
            f"were, or take the encoder alone: init.encoder={source}"
        )


def _differing(
    section: str, was: Any, now: Any, keys: Sequence[str], first: str = "was", second: str = "is"
) -> list[str]:
    pairs = {key: (getattr(was, key), getattr(now, key)) for key in keys}
    return [
        f"{section}.{key} {first} {before}, {second} {after}"
        for key, (before, after) in pairs.items()
        if before != after
    ]
