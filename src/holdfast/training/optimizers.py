"""Any optimizer by its name, with weight decay only where it helps.

>>> model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
>>> optimizer = make_optimizer(model, OptimizerSettings(lr=1e-3), torch.device("cpu"))
>>> [(len(group["params"]), group["weight_decay"]) for group in optimizer.param_groups]
[(2, 0.01), (4, 0.0)]
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.torch_version import TorchVersion

from ..config import Section, bounded
from ..errors import SettingsError, UsageError

# Batch and instance norms, the lazy and synchronised ones too, share the first.
_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_WITHOUT_DECAY = (*_NORMS, *_EMBEDDINGS)

NUMBERS = ("lr", "weight_decay", "betas", "momentum", "eps")
"""The settings that an optimizer takes as they are."""
_FUSED_DEVICES = ("cuda", "cpu")
_FUSED_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# Fused Adagrad exists on CUDA from 2.13 at the latest; 2.11 refuses it.
_ADAGRAD_ON_CUDA = TorchVersion(torch.__version__) >= "2.13"


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerSettings(Section):
    """Which optimizer, and its numbers; null leaves a number to the optimizer's own default."""

    name: str = "adamw"  # a class of torch.optim in any case, or package.module:Class
    lr: float = bounded(3e-4, 0.0, above=True)
    weight_decay: float = bounded(0.01, 0.0)
    betas: tuple[float, float] | None = None
    momentum: float | None = bounded(None, 0.0)
    eps: float | None = bounded(None, 0.0, above=True)
    fused: bool = True  # one kernel for all weights, where there is one
    decay_all: bool = False  # decay biases, norms and embeddings too


def make_optimizer(
    model: nn.Module, settings: OptimizerSettings, device: torch.device
) -> Optimizer:
    """The optimizer for what is trainable in a model, in two groups: with and without decay.

    Without decay are biases, norm layers, embeddings, tensors of fewer than two dimensions, and
    modules or parameters that have ``no_decay = True``. A weight that is used in two places is
    there once, without decay if one of the places says so; frozen parameters are skipped.

    Args:
        model: where it will be trained, or about to be moved there.
        settings: which optimizer.
        device: where it will be trained.
    """
    kind = check(settings)
    named = _trainable(model)
    _check_weights(kind, named, settings)
    options = _options(kind, settings)
    parameters = list(named.values())
    if "fused" in _taken(kind):
        # False is told to the guard, too: it would switch an optimizer that says nothing.
        if not settings.fused:
            options["fused"] = False
        elif _fusible(kind, model, parameters, device):
            options["fused"] = True
    groups: list[dict[str, Any]] = [{"params": parameters}]
    if "weight_decay" in options and not settings.decay_all:
        saved = _saved(model)
        decayed = [p for p in parameters if id(p) not in saved]
        plain = [p for p in parameters if id(p) in saved]
        groups = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
    try:
        return kind([group for group in groups if group["params"]], **options)
    except (TypeError, ValueError) as error:
        raise SettingsError(f"optimizer {settings.name!r} cannot be made: {error}") from None


def check(settings: OptimizerSettings) -> type[Optimizer]:
    """The class the settings mean; whatever is wrong with them is found without a model."""
    kind = _find(settings.name)
    shown = f"optimizer {settings.name!r}"
    closure = inspect.signature(kind.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise SettingsError(
            f"{shown}: {kind.__name__} computes the loss again within a step, which this loop "
            "does not offer; choose another one, for example adamw"
        )
    taken = _taken(kind)
    for option, value in _options(kind, settings).items():
        if option not in taken and None not in taken:
            left = "set it to 0" if option == "weight_decay" else "remove it"
            others = ", ".join(name for name in taken if name in NUMBERS)
            raise SettingsError(
                f"{shown}: {kind.__name__} takes no {option} ({value}); {left}. "
                f"Of the settings it takes {others}"
            )
        default = taken.get(option)
        if isinstance(default, tuple) and not isinstance(value, tuple):
            raise SettingsError(
                f"{shown}: {kind.__name__} takes {option} as {default}, not {value}; "
                f"remove {option}"
            )
    for beta in settings.betas or ():
        if not 0.0 <= beta < 1.0:
            raise SettingsError(f"{shown}: betas must be from 0 to below 1, not {beta}")
    return kind


def _options(kind: type[Optimizer], settings: OptimizerSettings) -> dict[str, Any]:
    """What is asked for: every number that is not null."""
    asked = {name: getattr(settings, name) for name in NUMBERS}
    if not settings.weight_decay and "weight_decay" not in _taken(kind):
        del asked["weight_decay"]  # no decay is what such a class does
    return {name: value for name, value in asked.items() if value is not None}


def _taken(kind: type[Optimizer]) -> dict[str | None, Any]:
    """Names and defaults of what a class can be given; None is among them if it takes anything."""
    found: dict[str | None, Any] = {}
    for name, one in inspect.signature(kind.__init__).parameters.items():
        found[None if one.kind is inspect.Parameter.VAR_KEYWORD else name] = one.default
    return found


def _find(name: str) -> type[Optimizer]:
    module, colon, attribute = name.partition(":")
    if colon:
        try:
            kind = getattr(importlib.import_module(module), attribute)
        except Exception as error:  # whatever a module of the user's does when it is imported
            raise SettingsError(
                f"optimizer {name!r}: cannot be imported ({type(error).__name__}: {error}); "
                "write it as package.module:Class"
            ) from None
        if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
            raise SettingsError(
                f"optimizer {name!r}: is no torch.optim.Optimizer; name a class derived from it"
            )
        return kind
    known = {
        key.lower(): kind
        for key, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
    }
    if name.lower() in known:
        return known[name.lower()]
    near = difflib.get_close_matches(name.lower(), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))};"
    raise SettingsError(f"unknown optimizer {name!r}; {hint} others are named package.module:Class")


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, parameter in named.items():
        if is_lazy(parameter):
            raise UsageError(
                f"{name} of {type(model).__name__} has no shape yet; run one batch through the "
                "model before it is trained"
            )
    if not named:
        raise UsageError(f"{type(model).__name__} has no parameter that requires a gradient")
    return named


def _check_weights(
    kind: type[Optimizer], named: dict[str, nn.Parameter], settings: OptimizerSettings
) -> None:
    others = [name for name, p in named.items() if p.ndim != 2]
    if issubclass(kind, torch.optim.Muon) and others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise SettingsError(
            f"optimizer {settings.name!r} takes 2-D weights only, but {others[0]} of shape "
            f"{tuple(named[others[0]].shape)}{more} would need a second optimizer; use adamw, or "
            "freeze them"
        )


def _fusible(
    kind: type[Optimizer], model: nn.Module, parameters: list[nn.Parameter], device: torch.device
) -> bool:
    places = {device.type, *(p.device.type for p in parameters if not p.is_meta)}
    if issubclass(kind, torch.optim.Adagrad) and "cuda" in places and not _ADAGRAD_ON_CUDA:
        return False
    return (
        places <= set(_FUSED_DEVICES)
        and all(p.dtype in _FUSED_DTYPES and p.layout is torch.strided for p in parameters)
        # Their gradients are sparse, which no fused kernel takes.
        and not any(isinstance(m, _EMBEDDINGS) and m.sparse for m in model.modules())
    )


def _saved(model: nn.Module) -> set[int]:
    """Which parameters are not decayed, by identity: one weight may have several names."""
    return {id(p) for name, p, module in _owned(model) if _spares(name, p, module)} | {
        id(p)
        for module in model.modules()
        if getattr(module, "no_decay", False) is True
        for p in module.parameters()
    }


def _owned(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, nn.Module]]:
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            yield name, parameter, module


def _spares(name: str, parameter: nn.Parameter, module: nn.Module) -> bool:
    return (
        parameter.ndim < 2
        or isinstance(module, _WITHOUT_DECAY)
        or name.startswith("bias")
        or name.endswith("_bias")
        or getattr(parameter, "no_decay", False) is True
    )
