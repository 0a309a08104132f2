"""Training state found among the live objects of an unmodified script."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from ..checkpoint.module_state import buffers_in, unwrapped
from ..checkpoint.training_state import TrainingState
from ..probes.model_state import live_modules
from .training import Training

# Optimizers whose model is looked up with their first step. More are made by scripts that need a
# new one for every batch; those pay for a look only with every snapshot.
_STAGES = 16

# Averages of the weights are looked for among all live objects: not in short runs.
_SETTLED = 30.0


LOOSE = "parameters"
"""Name of the parameters that belong to no module."""


class LiveState:
    """Knows what belongs to the run without keeping any of it alive.

    Where a function returns, its model may be freed a moment before its optimizer: the tensors of
    a model are known without it, and let go together with the optimizer.

    ``given`` is a training state that the caller has named; nothing is searched for then.
    """

    def __init__(self, training: Training) -> None:
        self.given: TrainingState | None = None
        self._training = training
        self._optimizers: list[tuple[int, weakref.ref[Optimizer]]] = []
        self._models: dict[str, weakref.ref[nn.Module]] = {}
        self._outlines: dict[str, Outline] = {}
        self._new = False
        self._stages = 0
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
        """Whether the optimizers are not those of the last time it was asked."""
        self.look()
        new, self._new = self._new, False
        return new

    def look(self) -> None:
        """Learn what the run consists of, if its optimizers are not those of the last look."""
        if self.given is not None:
            return
        live = [optimizer for optimizer, _ in self._training.guards()]
        if [reference() for _, reference in self._optimizers] == live:
            return
        self._optimizers = [(id(optimizer), weakref.ref(optimizer)) for optimizer in live]
        models = _named(_in_order(self._training.models(), live))
        self._models = {name: weakref.ref(model) for name, model in models.items()}
        self._outlines = {}
        if all(map(_tells_its_end, live)):
            self._outlines = {name: Outline(unwrapped(model)) for name, model in models.items()}
        self._loose = bool(_without_module(models.values(), live))
        self._averages = None
        self._new = True

    def first_step(self) -> None:
        """An optimizer takes its first step."""
        self._stages += 1
        if not self.many_stages:
            self.look()

    @property
    def many_stages(self) -> bool:
        """Whether the script makes so many optimizers that one more or less is no event."""
        return self._stages > _STAGES

    def leaving(self, optimizer: Optimizer) -> TrainingState | None:
        """The state with an optimizer that is about to be freed; None where not all is left."""
        leaving = {id(optimizer): optimizer}
        optimizers = [leaving.get(key, reference()) for key, reference in self._optimizers]
        if optimizer not in optimizers or None in optimizers:
            return None
        return self._state([one for one in optimizers if one is not None])

    def left(self, optimizer: Optimizer) -> None:
        """It is freed now: the tensors of its model must not stay because of us."""
        if id(optimizer) in dict(self._optimizers):
            self._outlines = {}

    def training_state(self) -> TrainingState:
        """Everything that is still alive."""
        if self.given is not None:
            return self.given
        return self._state(_alive(reference for _, reference in self._optimizers))

    def _state(self, optimizers: list[Optimizer]) -> TrainingState:
        models: dict[str, nn.Module] = {}
        for name, reference in self._models.items():
            model = reference()
            if model is None and name in self._outlines:
                model = self._outlines[name].module()
            if model is not None:
                models[name] = model
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


class Outline:
    """The tensors of a module under their names, without the modules.

    The dictionaries are the modules' own, so that a buffer that is replaced is seen here too.
    Parameters that refer to more than data are skipped.
    """

    def __init__(self, module: nn.Module) -> None:
        self._root = id(module)
        self._parts = {
            id(part): (
                _tensors_of(part),
                {n: id(c) for n, c in part._modules.items() if c is not None},
            )
            for part in module.modules()
        }

    def module(self) -> nn.Module:
        """A plain module with the same tensors."""
        made = {key: nn.Module() for key in self._parts}
        for key, (tensors, children) in self._parts.items():
            vars(made[key]).update(tensors)
            made[key]._modules.update((name, made[child]) for name, child in children.items())
        return made[self._root]


def _tensors_of(module: nn.Module) -> dict[str, Any]:
    """The dictionaries of a module that hold tensors."""
    parameters = module._parameters
    if any(p is not None and refers(p) for p in parameters.values()):
        parameters = dict[str, Any]()
    shared = ("_buffers", "_non_persistent_buffers_set")
    return {"_parameters": parameters, **{name: vars(module)[name] for name in shared}}


def refers(parameter: Tensor) -> bool:
    """Whether a parameter may keep other objects alive: through a hook, or an attribute."""
    hooks = parameter._backward_hooks, getattr(parameter, "_post_accumulate_grad_hooks", None)
    return any(hooks) or bool(vars(parameter))


def _tells_its_end(optimizer: Optimizer) -> bool:
    """Whether we are told when it is freed: a class may have a ``__del__`` of its own."""
    ours = getattr(Optimizer, "__del__", None)
    return ours is not None and getattr(type(optimizer), "__del__", None) is ours


def _in_order(models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> list[nn.Module]:
    """Models in the order of their parameters in the optimizers: the same in every process."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    places = {id(p): n for n, p in enumerate(p for group in groups for p in group["params"])}
    last = len(places)
    return sorted(models, key=lambda m: min((places.get(id(p), last) for p in m.parameters()),
                                            default=last))  # fmt: skip


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
