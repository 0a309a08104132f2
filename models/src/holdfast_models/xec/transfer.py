"""Weights from one run into a model of another: what fits, what does not and why.

An encoder goes from any of the three models to any other; whole weights go to the same model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from holdfast import HoldfastError
from holdfast.training import read_weights

from .geometry.survey import geometry_hash
from .kinds import SavedRun, saved_run
from .run_settings import AnyRun, InpainterRun, RegressorRun
from .settings import EncoderSettings

_ENCODER = "encoder."
# What the weights of an encoder depend on; anything else may differ.
_SHAPING = (
    "outer_mode", "outer_fine_pool", "encoder_dim", "feedforward", "num_fusion_layers", "hex_dim",
)  # fmt: skip
_SHAPING_TOO = ("pool",)  # no weights of their own, but what they were learned with
_MEANING = ("log_transform", "against_light", "offset", "scale")  # of what a head predicts


class Transferred(NamedTuple):
    """How much of a model came from elsewhere."""

    loaded: int
    new: int
    source: str

    @property
    def line(self) -> str:
        """For people."""
        return f"{self.source}: {self.loaded} tensors loaded, {self.new} new"


def apply_init(model: nn.Module, settings: AnyRun) -> list[str]:
    """Begin with the weights that ``settings.init`` names; lines for people."""
    source = check_init(settings)
    if source is None:
        return []
    weights, checkpoint = read_weights(source)
    prefix = "" if settings.init.encoder is None else _ENCODER
    part = {name: one for name, one in weights.items() if name.startswith(prefix)}
    return [_put(model, part, str(checkpoint), prefix=prefix).line]


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
    saved = saved_run(source)
    was, now = saved.settings.kind, settings.kind
    if init.weights is not None and was != now:
        raise HoldfastError(
            f"init.weights={source} is a run of xec.{was}, not of xec.{now}; "
            f"its encoder alone can be used: set init.encoder={source}"
        )
    _refuse_differences(source, saved, settings)
    if init.weights is not None:
        _refuse_other_meanings(source, saved.settings, settings)
    return source


def normalization_differences(one: AnyRun, other: AnyRun) -> list[str]:
    """The keys in which two runs differ in how they read events."""
    found = _differing("normalization", vars(one.normalization), vars(other.normalization))
    branches = ("npho_branch", "time_branch")
    mine, theirs = ({key: getattr(run.data, key) for key in branches} for run in (one, other))
    return found + _differing("data", mine, theirs)


def _refuse_differences(source: str, saved: SavedRun, settings: AnyRun) -> None:
    if saved.geometry not in (None, geometry_hash()):
        raise HoldfastError(
            f"{source} was trained on another geometry ({saved.geometry}, here "
            f"{geometry_hash()}); its sensors are elsewhere, so its weights mean nothing here"
        )
    found = _differing("model", _shape(saved.settings.model), _shape(settings.model), "run", "now")
    if found:
        raise HoldfastError(
            f"the encoder of {source} does not fit: {', '.join(found)}; set the model as it was"
        )
    if settings.init.allow_norm_mismatch:
        return
    found = normalization_differences(saved.settings, settings)
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
            before, after = (
                {key: getattr(one, key) for key in _MEANING} for one in (was, now.get(name, was))
            )
            found += _differing(f"tasks.{name}", before, after, "run", "now")
    elif isinstance(saved, InpainterRun) and isinstance(settings, InpainterRun):
        key = "against_neighbours"
        before, after = ({key: getattr(run.model, key)} for run in (saved, settings))
        found += _differing("model", before, after, "run", "now")
    if found:
        raise HoldfastError(
            f"the heads of {source} predict something else: {', '.join(found)}; set them as they "
            f"were, or take the encoder alone: init.encoder={source}"
        )


def _shape(model: EncoderSettings) -> dict[str, Any]:
    return {key: getattr(model, key) for key in (*_SHAPING, *_SHAPING_TOO)}


def _differing(
    section: str,
    was: Mapping[str, Any],
    now: Mapping[str, Any],
    first: str = "was",
    second: str = "is",
) -> list[str]:
    return [
        f"{section}.{key} {first} {was[key]}, {second} {now[key]}"
        for key in was
        if was[key] != now[key]
    ]


def _put(
    model: nn.Module, weights: Mapping[str, Tensor], source: str, *, prefix: str
) -> Transferred:
    mine = model.state_dict()
    # Checkpoints also hold tables that every model makes for itself.
    tables = {name for name, _ in model.named_buffers()} - mine.keys()
    weights = {name: value for name, value in weights.items() if name not in tables}
    wanted = {name for name in mine if name.startswith(prefix)}
    missing = sorted(wanted - weights.keys())
    unexpected = sorted(weights.keys() - wanted)
    shapes = [
        f"{name} {tuple(weights[name].shape)} instead of {tuple(mine[name].shape)}"
        for name in sorted(wanted & weights.keys())
        if weights[name].shape != mine[name].shape
    ]
    trouble = [
        f"{what}: {', '.join(names[:4])}{' …' * (len(names) > 4)}"
        for what, names in (("missing", missing), ("unexpected", unexpected), ("shape", shapes))
        if names
    ]
    if trouble:
        raise HoldfastError(f"the weights of {source} do not fit; {'; '.join(trouble)}")
    with torch.no_grad():
        for name, value in weights.items():
            mine[name].copy_(value)
    return Transferred(len(weights), len(mine) - len(weights), source)
