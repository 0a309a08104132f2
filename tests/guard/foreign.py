"""Optimizers as scripts and packages write them; none of them asks what a missing gradient is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, optim


class Clamped(optim.Optimizer):
    """Copes with NaN by itself, and does not ask whether there is a gradient."""

    def __init__(self, params: Iterable[Any], lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad.clamp(-1, 1).nan_to_num(), alpha=-group["lr"])
        return loss


class Langevin(optim.Optimizer):
    """SGLD: reads the norm of each gradient, and draws noise."""

    def __init__(self, params: Iterable[Any], lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr})
        self.norms: list[float] = []
        self.noise = torch.Generator().manual_seed(7)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                self.norms.append(p.grad.norm().item())
                noise = torch.randn(p.shape, generator=self.noise) * 1e-3
                p.data.add_(p.grad, alpha=-group["lr"]).add_(noise)


class Counting(optim.Optimizer):
    """Counts on itself, decays before it looks, keeps moments in a list of its own."""

    def __init__(self, params: Iterable[Any], lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr, "steps": 0})
        self.k = 0
        self.moments: list[Tensor] = []
        self.history: dict[str, list[float]] = defaultdict(list)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.k += 1
        params = [p for g in self.param_groups for p in g["params"]]
        if not self.moments:
            self.moments = [torch.zeros_like(p) for p in params]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            group["steps"] += 1
            self.history["lr"].append(group["lr"] / self.k)
        for p, moment in zip(params, self.moments, strict=True):
            p.mul_(1 - 1e-2 / self.k)
            p.grad.add_(p, alpha=1e-3)
            moment.mul_(0.9).add_(p.grad)
            p.sub_(moment, alpha=self.param_groups[0]["lr"])
        return loss


class Strict(optim.Optimizer):
    """Raises on a number that is not finite."""

    def __init__(self, params: Iterable[Any], lr: float = 0.05) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for p in self.param_groups[0]["params"]:
            if not p.grad.isfinite().all():
                raise FloatingPointError("gradient")
            p.sub_(p.grad, alpha=self.param_groups[0]["lr"])
        return loss


class Clearing(optim.Optimizer):
    """Zeroes the gradients in its step: the loop never does."""

    def __init__(self, params: Iterable[Any], lr: float = 0.05, *, to_none: bool = False) -> None:
        super().__init__(params, {"lr": lr, "to_none": to_none})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad, alpha=group["lr"])
                if group["to_none"]:
                    p.grad = None
                else:
                    p.grad.zero_()


class CountingAdam(optim.Adam):
    """One of torch's with a step around it."""

    k = 0

    def step(self, closure: Any = None) -> Any:
        self.k += 1
        with torch.no_grad():
            for p in self.param_groups[0]["params"]:
                p.mul_(0.999)
        return super().step(closure)


class Lookahead(optim.Optimizer):
    """As timm has it: around another optimizer, whose groups it shares, without torch's hooks."""

    def __init__(self, base: optim.Optimizer, k: int = 3, alpha: float = 0.5) -> None:
        self.base, self.k, self.alpha, self.calls = base, k, alpha, 0
        self.param_groups = base.param_groups
        self.state = base.state
        self.defaults = base.defaults
        self._optimizer_step_pre_hooks = {}  # type: ignore[assignment]
        self._optimizer_step_post_hooks = {}  # type: ignore[assignment]
        self.slow: dict[Tensor, Tensor] = {}
        for group in self.param_groups:
            group["lookahead"] = 0

    def state_dict(self) -> dict[str, Any]:
        return self.base.state_dict()

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        loss = self.base.step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                group["lookahead"] += 1
                if group["lookahead"] % self.k == 0:
                    for p in group["params"]:
                        slow = self.slow.setdefault(p, p.detach().clone())
                        slow.add_(p - slow, alpha=self.alpha)
                        p.copy_(slow)
        return loss


class HookedLookahead(optim.Optimizer):
    """The same, made as an optimizer of its own."""

    def __init__(self, base: optim.Optimizer, k: int = 3, alpha: float = 0.5) -> None:
        super().__init__(base.param_groups, dict(base.defaults))
        self.base, self.k, self.alpha, self.n = base, k, alpha, 0
        self.slow = [[p.detach().clone() for p in g["params"]] for g in base.param_groups]

    def step(self, closure: Any = None) -> Any:
        loss = self.base.step(closure)
        self.n += 1
        if self.n % self.k == 0:
            with torch.no_grad():
                for group, slows in zip(self.base.param_groups, self.slow, strict=True):
                    for p, slow in zip(group["params"], slows, strict=True):
                        slow.lerp_(p, self.alpha)
                        p.copy_(slow)
        return loss


class Averaging:
    """A wrapper that only looks like an optimizer."""

    def __init__(self, base: optim.Optimizer) -> None:
        self.base, self.steps = base, 0
        self.param_groups = base.param_groups
        self.average: list[Tensor] = []

    def state_dict(self) -> dict[str, Any]:
        return self.base.state_dict()

    def step(self) -> None:
        self.steps += 1
        self.base.step()
        weights = [p.detach().clone() for g in self.base.param_groups for p in g["params"]]
        self.average = (
            [a.lerp(w, 1 / self.steps) for a, w in zip(self.average, weights, strict=True)]
            if self.average
            else weights
        )


def own_state(optimizer: Any) -> dict[str, Any]:
    """What an optimizer keeps on itself, beside what ``state_dict`` has."""
    kept: dict[str, Any] = {}
    for name, value in vars(optimizer).items():
        if isinstance(value, torch.Generator):
            kept[name] = value.get_state()
        elif isinstance(value, optim.Optimizer):
            kept[name] = value.state_dict() | own_state(value)
        elif isinstance(value, dict) and any(isinstance(key, Tensor) for key in value):
            kept[name] = list(value.values())
        elif name not in ("defaults", "state", "param_groups") and not name.startswith("_"):
            kept[name] = value if isinstance(value, int | float | list | dict) else None
    return kept
