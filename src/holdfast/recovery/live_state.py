"""Training state found among the live objects of an unmodified script."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from ..checkpoint.module_state import buffers_in
from ..checkpoint.training_state import TrainingState
from ..probes.model_state import live_modules
from .training import Training

# Averages of the weights are looked for among all live objects: not in short runs.
_SETTLED = 30.0


LOOSE = "parameters"
"""Name of the parameters that belong to no module."""


class LiveState:
    """Knows what belongs to the run without keeping any of it alive.

    ``given`` is a training state that the caller has named; nothing is searched for then.
    """

    def __init__(self, training: Training) -> None:
        self.given: TrainingState | None = None
        self._training = training
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._models: dict[str, weakref.ref[nn.Module]] = {}
        self._loose = False
        self._averages: dict[str, weakref.ref[nn.Module]] | None = None
        self._schedulers: dict[int, weakref.ref[Any]] = {}
        self._scaler: weakref.ref[Any] | None = None
        self._began = time.monotonic()

    def saw_scheduler(self, scheduler: Any) -> None:
        """A schedule of the run."""
        if id(scheduler) not in self._schedulers:
            self._schedulers[id(scheduler)] = weakref.ref(scheduler)

    def saw_scaler(self, scaler: Any) -> None:
        """The GradScaler of the run."""
        if self._scaler is None or self._scaler() is not scaler:
            self._scaler = weakref.ref(scaler)

    def changed(self) -> bool:
        """Whether the optimizers are not those of the last look; takes a new look then."""
        if self.given is not None:
            return False
        live = [optimizer for optimizer, _ in self._training.guards()]
        if [reference() for reference in self._optimizers] == live:
            return False
        self._optimizers = list(map(weakref.ref, live))
        models = _named(self._training.models())
        self._models = {name: weakref.ref(model) for name, model in models.items()}
        self._loose = bool(_without_module(models.values(), live))
        self._averages = None
        return True

    def training_state(self) -> TrainingState:
        """Everything that is still alive."""
        if self.given is not None:
            return self.given
        optimizers = _alive(self._optimizers)
        models = {n: m for n, r in self._models.items() if (m := r()) is not None}
        if self._averages is None and time.monotonic() - self._began > _SETTLED:
            found = _named(_mirrors(models.values(), optimizers), "ema")
            self._averages = {name: weakref.ref(module) for name, module in found.items()}
        averages = (self._averages or {}).items()
        if self._loose:
            models |= _without_module(models.values(), optimizers)
        return TrainingState(
            models,
            optimizers,
            schedulers=_alive(self._schedulers.values()),
            scaler=None if self._scaler is None else self._scaler(),
            ema={name: module for name, r in averages if (module := r()) is not None},
        )

    def buffer_names(self) -> set[str]:
        """Buffers of the models, as a state calls them."""
        models = self.training_state().models.items()
        return {f"models.{name}.{key}" for name, model in models for key, _ in buffers_in(model)}


def _without_module(
    models: Iterable[nn.Module], optimizers: Iterable[Optimizer]
) -> dict[str, nn.Module]:
    """Parameters of optimizers that belong to no module, in one made for them; none if all do."""
    known = {id(parameter) for model in models for parameter in model.parameters()}
    holder = nn.Module()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in known:
                    known.add(id(parameter))
                    # A plain tensor will do, which register_parameter refuses.
                    holder._parameters[str(len(holder._parameters))] = parameter
    return {LOOSE: holder} if holder._parameters else {}


def _alive(references: Iterable[weakref.ref[Any]]) -> list[Any]:
    return [one for reference in references if (one := reference()) is not None]


def _mirrors(models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> list[nn.Module]:
    """Modules shaped like a model without being trained: averages and target networks."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    ours = {id(parameter) for group in groups for parameter in group["params"]}
    shapes = {_shapes(model) for model in models} - {()}
    found: list[nn.Module] = []
    for module in live_modules():
        if any(id(p) in ours for p in module.parameters()):
            continue
        mirror = module.module if isinstance(module, AveragedModel) else module
        if isinstance(mirror, nn.Module) and _shapes(mirror) in shapes:
            found.append(module)
    inside = {id(child) for module in found for child in module.modules() if child is not module}
    return [module for module in found if id(module) not in inside]


def _shapes(module: nn.Module) -> tuple[tuple[str, torch.Size], ...]:
    return tuple((name, p.shape) for name, p in module.named_parameters())


def _named(modules: Sequence[nn.Module], word: str = "") -> dict[str, nn.Module]:
    """Each by its class, with a number where that is not enough."""
    named: dict[str, nn.Module] = {}
    for module in modules:
        name = base = word or type(module).__name__
        number = 1
        while name in named:
            number += 1
            name = f"{base}{number}"
        named[name] = module
    return named


def with_live_groups(saved: Sequence[Any], optimizers: Sequence[Optimizer]) -> list[Any]:
    """Saved optimizers with the settings they have now: a schedule has gone on with the loop."""
    out: list[Any] = []
    for state, optimizer in zip(saved, optimizers, strict=True):
        groups: list[Any] = []
        for group, live in zip(state["groups"], optimizer.param_groups, strict=True):
            groups.append({key: live.get(key, value) for key, value in group.items()})
        out.append({**state, "groups": groups})
    return out
