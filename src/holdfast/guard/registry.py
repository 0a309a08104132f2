"""Registry of the optimizers of this process, with their guards and models."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from ..actions.restore_buffers import BufferKeeper
from ..config import GuardSettings
from ..diagnosis.nonfinite.provenance import Scene, addresses
from ..probes._host_norms import plain, read_on_host
from ..probes.batches import Batch
from ..probes.gradients import Meters
from ..probes.model_state import (
    buffers_of,
    clean,
    layer_names,
    live_modules,
    roots_of,
)
from .optimizer_guard import OptimizerGuard
from .outliers import Outliers


class OptimizerRegistry:
    """Finds the guard of an optimizer; only weak references to optimizers and models are kept."""

    def __init__(
        self, settings: GuardSettings, meters: Meters, outliers: Callable[[], Outliers]
    ) -> None:
        self.buffers = BufferKeeper()
        self._settings = settings
        self._meters = meters
        self._outliers = outliers
        self._count = 0
        self._guards: weakref.WeakKeyDictionary[Optimizer, OptimizerGuard] = (
            weakref.WeakKeyDictionary()
        )
        # Most loops have one optimizer: a weak dictionary is slow to ask on every step.
        self._latest: tuple[Callable[[], Optimizer | None], OptimizerGuard | None] = (
            lambda: None,
            None,
        )
        self._models: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def of(self, optimizer: Optimizer, models: Iterable[nn.Module] | None = None) -> OptimizerGuard:
        """The guard of an optimizer, made on first use; new parameters are registered."""
        return self.with_parameters(optimizer, models)[0]

    def with_parameters(
        self, optimizer: Optimizer, models: Iterable[nn.Module] | None = None
    ) -> tuple[OptimizerGuard, list[nn.Parameter]]:
        """``of``, and the parameters the optimizer holds now."""
        latest, guard = self._latest
        if latest() is not optimizer:
            guard = self._guards.get(optimizer)
        if guard is None:
            name = type(optimizer).__name__
            guard = OptimizerGuard(
                self._count, name, self._settings, self.buffers, self._meters, self._outliers()
            )
            self._guards[optimizer] = guard
            self._count += 1
            self._latest = weakref.ref(optimizer), guard
        groups = optimizer.param_groups
        if len(groups) == 1:
            parameters = groups[0]["params"]
        else:
            parameters = [p for g in groups for p in g["params"]]
        if len(guard.layers) != len(parameters):
            self._learn(parameters, guard, models)
        return guard, parameters

    def __len__(self) -> int:
        return len(self._guards)

    def all(self) -> list[tuple[Optimizer, OptimizerGuard]]:
        """Every optimizer still alive, with its guard."""
        return list(self._guards.items())

    def models(self) -> list[nn.Module]:
        """The models behind all optimizers."""
        groups = [g for optimizer, _ in self.all() for g in optimizer.param_groups]
        return self._roots([p for g in groups for p in g["params"]], self._models)

    def restored(self) -> None:
        """Weights, state and buffers were restored: discard what was cached about them."""
        for _, guard in self.all():
            guard.forget_state()
        self.buffers.look()
        self.buffers.keep()

    def bad_gradient(self) -> bool:
        """Whether any gradient on the CPU is non-finite."""
        groups = [g for optimizer, _ in self.all() for g in optimizer.param_groups]
        grads = [p.grad for g in groups for p in g["params"] if p.grad is not None and p.is_cpu]
        return bool(grads) and bool(read_on_host(plain(grads)).bad)

    def scene(self, batches: Sequence[Batch], rng: Tensor | None, loss: Tensor | None) -> Scene:
        """Inputs of an investigation."""
        named: list[tuple[str, Tensor]] = []
        for optimizer, guard in self.all():
            parameters = [p for g in optimizer.param_groups for p in g["params"]]
            named += zip(guard.layers, parameters, strict=False)
        roots = self._roots([p for _, p in named], self._models)
        return Scene(
            modules={
                id(module): clean(path) or type(root).__name__
                for root in reversed(roots)
                for path, module in root.named_modules()
            },
            parameters=addresses(named),
            buffers=addresses([(n, b) for r in roots for n, b in r.named_buffers()]),
            batch=batches[-1] if batches else None,
            owners=[module for root in roots for module in root.modules()],
            loss=loss,
            rng=rng,
        )

    def _learn(
        self,
        parameters: list[nn.Parameter],
        guard: OptimizerGuard,
        models: Iterable[nn.Module] | None,
    ) -> None:
        """Names and buffers of the models behind an optimizer."""
        roots = self._roots(parameters, models if models is not None else self._models)
        guard.layers = layer_names(parameters, roots)
        guard.announced = False
        self.buffers.add(buffers_of(roots))

    def _roots(self, parameters: Sequence[Tensor], models: Iterable[nn.Module]) -> list[nn.Module]:
        """The models behind parameters; searched among all live objects only when not known."""
        roots = roots_of(parameters, models)
        known = {id(p) for root in roots for p in root.parameters()}
        if any(id(p) not in known for p in parameters):
            self._models.update(live_modules())
            roots = roots_of(parameters, self._models)
        return roots
