"""Registry of the optimizers of this process, with their guards and models."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from ..actions import foreign_step
from ..actions.restore_buffers import BufferKeeper
from ..config import Settings
from ..policy import Policy
from ..probes.comparable import Comparability
from ..probes.gradients import NormMeters
from ..probes.model_state import buffers_of, layer_names, live_modules, roots_of
from .clip_order import ClipOrder
from .optimizer_guard import OptimizerGuard, parameters_of
from .outliers import Outliers


class OptimizerRegistry:
    """Finds the guard of an optimizer; only weak references to optimizers and models are kept."""

    def __init__(self, settings: Settings, policy: Policy) -> None:
        self.comparability = Comparability()
        self.buffers = BufferKeeper()
        self.norm_meters = NormMeters()
        """Measure what a script clips, of whichever optimizer."""
        self.clip_order = ClipOrder(lambda: map(parameters_of, self.guards))
        self._settings, self._policy = settings, policy
        self._count = 0
        self.guards: weakref.WeakKeyDictionary[Optimizer, OptimizerGuard] = (
            weakref.WeakKeyDictionary()
        )
        """The guard of every optimizer that lives."""
        self._models: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        # By id: a module that is being made may not be ready for its own __hash__.
        self._seen: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()
        # Parameters of no module, by id: all live objects are searched for each of them once.
        self._loose: dict[int, weakref.ref[Tensor]] = {}

    def of(self, optimizer: Optimizer, models: Iterable[nn.Module] | None = None) -> OptimizerGuard:
        """The guard of an optimizer, made on first use; new parameters are registered."""
        return self.with_parameters(optimizer, models)[0]

    def with_parameters(
        self, optimizer: Optimizer, models: Iterable[nn.Module] | None = None
    ) -> tuple[OptimizerGuard, list[nn.Parameter]]:
        """``of``, and the parameters the optimizer holds now."""
        guard = self.guards.get(optimizer)
        if guard is None:
            guard = self.guards[optimizer] = OptimizerGuard(
                self._count,
                type(optimizer).__name__,
                self._settings.guard,
                self.buffers,
                NormMeters(),  # which know the layout of its gradients
                Outliers(self._settings, self._policy, self.comparability),
            )
            self._count += 1
            foreign_step.wrap_class(optimizer)
        parameters = parameters_of(optimizer)
        if len(guard.layers) != len(parameters):
            roots = self.models_of(parameters, models)
            guard.layers = layer_names(parameters, roots)
            guard.announced = False
            self.buffers.add(buffers_of(roots))
            self.clip_order.forget()
        return guard, parameters

    def find(self, optimizer: Optimizer) -> OptimizerGuard | None:
        """The guard of an optimizer; None where it has none, or no longer."""
        return self.guards.get(optimizer)

    def __len__(self) -> int:
        return len(self.guards)

    def all_skip(self) -> bool:
        """Whether there are optimizers, and bad steps of every one are skipped."""
        return bool(self.guards) and not any(g.detect_only for g in self.guards.values())

    def all(self) -> list[tuple[Optimizer, OptimizerGuard]]:
        """Every optimizer still alive, with its guard."""
        return list(self.guards.items())

    def registers(self, module: nn.Module) -> None:
        """A module has been given a parameter or a module of its own."""
        self._seen[id(module)] = module

    def seen_modules(self) -> list[nn.Module]:
        """Those that torch has told us of, and those of known models."""
        known = [part for model in self._models for part in model.modules()]
        return list({id(one): one for one in (*known, *self._seen.values())}.values())

    def models_of(
        self, parameters: Sequence[Tensor], models: Iterable[nn.Module] | None = None
    ) -> list[nn.Module]:
        """The models behind parameters.

        They are looked for when they are not known: first among the modules that torch has told us
        of, then, for copies and what was loaded as a whole, among all live objects.
        """
        roots = roots_of(parameters, self._models if models is None else models)
        if not all(map(self._is_loose, _without(parameters, roots))):
            self._models.update(self._seen.values())
            roots = roots_of(parameters, self._models)
        if not all(map(self._is_loose, _without(parameters, roots))):
            self._models.update(live_modules())
            roots = roots_of(parameters, self._models)
            self._loose = {id(one): weakref.ref(one) for one in _without(parameters, roots)}
        return roots

    def known_models_of(self, parameters: Sequence[Tensor]) -> list[nn.Module]:
        """Those of them that were found before."""
        return roots_of(parameters, self._models)

    def _is_loose(self, parameter: Tensor) -> bool:
        # Modules register nothing else: a search, tens of milliseconds, would find nothing.
        if not isinstance(parameter, nn.Parameter):
            return True
        known = self._loose.get(id(parameter))
        return known is not None and known() is parameter


def _without(parameters: Sequence[Tensor], roots: Iterable[nn.Module]) -> list[Tensor]:
    """The parameters that are in none of the modules."""
    known = {id(one) for root in roots for one in root.parameters()}
    return [one for one in parameters if id(one) not in known]
