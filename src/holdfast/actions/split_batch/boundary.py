"""Boundary around a call of a module, which can compute its gradients in parts.

To autograd the call is one function of the parameters and of those arguments that have gradients.
Forward computes part by part and keeps no activations, or computes the whole batch and keeps its
graph. Backward gets the gradient of the result, computes each part once more and adds up. All
gradients are handed over at the end, so ``.grad`` counts each sample once, whatever fails on the
way, hooks on parameters run once, and what the script does to the result is plain autograd.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...probes.ranks import ranks
from . import structure
from .call import CallArguments, random_state, rng_of, version
from .memory import ran_out, release
from .plan import JoinRule, SplitPlan

Bounds = list[tuple[int, int]]

MOST = 64
"""Parts of a batch: where more are needed something else fills the memory (a leak), and with tiny
parts the run would hardly move. A guess."""


def even(samples: int, parts: int) -> Bounds:
    """Parts of about the same size.

    >>> even(7, 3)
    [(0, 2), (2, 4), (4, 7)]
    """
    ends = [samples * i // parts for i in range(parts + 1)]
    return list(pairwise(ends))


class SplitCall:
    """One call that is made in parts, or whole with its graph kept.

    Args:
        call: the arguments.
        plan: how results are put together.
        parts: how many; 1 keeps the graph of the whole batch.
        shrunk: told the number of samples when backward needs smaller parts.
    """

    def __init__(
        self,
        call: CallArguments,
        plan: SplitPlan,
        parts: int,
        shrunk: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.call, self.plan = call, plan
        self.bounds = even(call.samples, parts)
        self.leaves = plan.leaves(call.module)
        self._shrunk = shrunk
        self._versions = [version(p) for p in self.leaves]
        self._states: dict[tuple[int, int], tuple[Tensor, ...]] = {}
        self._graph: tuple[list[Tensor], list[Tensor]] | None = None
        self._skeleton: Any = None

    def result(self) -> Any:
        """What the call returns."""
        given = [t for t in self.call.inputs if t.requires_grad]
        if torch.is_grad_enabled() and (self.leaves or given):
            outputs = _Boundary.apply(self, *self.leaves, *given)
        else:
            outputs = tuple(self.forward(gradients=False))
        remaining = iter(outputs)
        return structure.changed(
            self._skeleton, lambda value: next(remaining) if isinstance(value, Tensor) else value
        )

    # ------------------------------------------------------------------ forward

    def forward(self, *, gradients: bool = True) -> list[Tensor]:
        """The tensors of the result."""
        if len(self.bounds) == 1 and gradients:
            return self._whole()
        merged: list[Tensor] = []
        for begin, end in self.bounds:
            if self.plan.random and gradients:
                self._states[begin, end] = rng_of(self.call.device)
            # Compiled code for gradients is there already, and gives the same numbers later on.
            with torch.set_grad_enabled(gradients and self.call.compiled):
                result = self.call.run(self.call.part(begin, end, leaves=True)[0])
            outputs = [t.detach() for t in structure.tensors(result)]
            if not merged:
                self._skeleton = structure.changed(result, _here)
                merged = [self._room(t, r) for t, r in zip(outputs, self.plan.rules, strict=True)]
            del result
            for into, part, rule in zip(merged, outputs, self.plan.rules, strict=True):
                if rule.kind == "cat":
                    self._slice(into, rule, begin, end).copy_(part)
                elif not into.is_floating_point():
                    into.copy_(part)
                else:
                    into.add_(part, alpha=self._weight(rule, begin, end))
        return merged

    def _whole(self) -> list[Tensor]:
        """All samples at once, with the graph."""
        bounds = self.bounds[0]
        if self.plan.random:
            self._states[bounds] = rng_of(self.call.device)
        with torch.enable_grad():
            arguments, made = self.call.part(*bounds, leaves=True)
            result = self.call.run(arguments)
        outputs = list(structure.tensors(result))
        self._skeleton = structure.changed(result, _here)
        self._graph = outputs, made
        return [t.detach() for t in outputs]

    def _room(self, part: Tensor, rule: JoinRule) -> Tensor:
        """Where the parts of one tensor go."""
        if rule.kind != "cat":
            return torch.zeros_like(part)
        shape = list(part.shape)
        shape[rule.dim] = rule.per * self.call.samples
        return part.new_empty(shape)

    @staticmethod
    def _slice(tensor: Tensor, rule: JoinRule, begin: int, end: int) -> Tensor:
        return tensor.narrow(rule.dim, rule.per * begin, rule.per * (end - begin))

    def _weight(self, rule: JoinRule, begin: int, end: int) -> float:
        return (end - begin) / self.call.samples if rule.kind == "mean" else 1.0

    # ------------------------------------------------------------------ backward

    def backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients of ``leaves`` and of the arguments that have one."""
        if not self.call.untouched() or [version(p) for p in self.leaves] != self._versions:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation: an argument or a parameter of a model whose batch was split"
            )
        bounds = self.bounds
        if self._graph is not None:
            sums = self._from_graph(gradients)
            if sums is not None:
                return sums
        if len(bounds) == 1:
            bounds = self._smaller(bounds[0])
        while True:
            sums = self._sums()
            failed = next((b for b in bounds if not self._add_part(b, gradients, sums)), None)
            if failed is None:
                return sums
            del sums
            release(self.call.device)
            bounds = self._smaller(failed)

    def _sums(self) -> list[Tensor | None]:
        given = sum(t.requires_grad for t in self.call.inputs)
        return [None] * (len(self.leaves) + given)

    def _smaller(self, failed: tuple[int, int]) -> Bounds:
        """Parts half as large as one that does not fit."""
        size = -(-(failed[1] - failed[0]) // 2)
        self._shrunk(size)
        return even(self.call.samples, -(-self.call.samples // size))

    def _from_graph(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None] | None:
        """Use the graph that forward has kept; None where memory runs out, and it is gone."""
        assert self._graph is not None
        outputs, made = self._graph
        keep, sums = _keeps_graph(), self._sums()
        try:
            self._gradients(outputs, made, gradients, self.bounds[0], sums, keep=keep)
            if not keep:
                self._graph = None
            return sums
        except (RuntimeError, MemoryError) as error:
            if self.call.samples == 1 or not ran_out(error, self.call.device):
                raise
        self._graph = None
        del outputs, made, sums
        release(self.call.device)
        return None

    def _add_part(
        self,
        bounds: tuple[int, int],
        gradients: Sequence[Tensor | None],
        sums: list[Tensor | None],
    ) -> bool:
        """Compute some samples once more; False where memory runs out, then ``sums`` are void."""
        try:
            state = self._states.get(bounds)
            # Buffers too are put back after backward, which may have saved them.
            with self.plan.buffers_kept(), torch.enable_grad():
                arguments, made = self.call.part(*bounds, leaves=True)
                with random_state(state, self.call.device):
                    outputs = list(structure.tensors(self.call.run(arguments)))
                self._gradients(outputs, made, gradients, bounds, sums)
            return True
        except (RuntimeError, MemoryError) as error:
            if self._smallest(bounds) or not ran_out(error, self.call.device):
                raise
        return False

    def _smallest(self, bounds: tuple[int, int]) -> bool:
        size = bounds[1] - bounds[0]
        return size == 1 or self.call.samples >= MOST * size

    def _gradients(
        self,
        outputs: Sequence[Tensor],
        made: Sequence[Tensor],
        gradients: Sequence[Tensor | None],
        bounds: tuple[int, int],
        sums: list[Tensor | None],
        *,
        keep: bool = False,
    ) -> None:
        """Add the gradients of one part to ``sums``."""
        begin, end = bounds
        roots: list[Tensor] = []
        heads: list[Tensor] = []
        for output, gradient, rule in zip(outputs, gradients, self.plan.rules, strict=True):
            if gradient is None or not output.requires_grad:
                continue
            if rule.kind == "cat":
                gradient = self._slice(gradient, rule, begin, end)
            elif rule.kind == "mean":
                gradient = gradient * self._weight(rule, begin, end)
            roots.append(output)
            heads.append(gradient)
        if not roots:
            return
        given = [t for t in made if t.requires_grad]
        add_up(self.leaves, sums, roots, heads, given, keep=keep)
        originals = [t for t in self.call.inputs if t.requires_grad]
        for i, (leaf, original) in enumerate(zip(given, originals, strict=True), len(self.leaves)):
            one, into = leaf.grad, sums[i]
            leaf.grad = None
            if one is None:
                continue
            if self.call.cut(original) and end - begin < self.call.samples:
                if into is None:
                    into = sums[i] = torch.zeros_like(original)
                into.narrow(0, begin, end - begin).copy_(one)
            else:
                sums[i] = one if into is None else into.add_(one)


def add_up(
    leaves: Sequence[Tensor],
    sums: list[Tensor | None],
    roots: Sequence[Tensor],
    heads: Sequence[Tensor],
    given: Sequence[Tensor],
    *,
    keep: bool = False,
) -> None:
    """Run backward and add the gradients of ``leaves`` to ``sums``; ``given`` get a ``.grad``.

    Autograd adds them in place, in ``.grad``, so that none is there twice. The gradients that the
    leaves had are back afterwards. Where hooks wait for that (several ranks, an optimizer inside
    of backward), gradients are taken without it, which holds those of a part twice for a moment.
    """
    if any(getattr(p, "_post_accumulate_grad_hooks", None) for p in leaves) or ranks() > 1:
        with _without_hooks(leaves):
            inputs = [*leaves, *given]
            found = torch.autograd.grad(roots, inputs, heads, retain_graph=keep, allow_unused=True)
        with torch.no_grad():
            for i, (leaf, one) in enumerate(zip(inputs, found, strict=True)):
                if i >= len(leaves):
                    leaf.grad = one
                elif one is not None:
                    into = sums[i]
                    sums[i] = one if into is None else into.add_(one)
        return
    before = [p.grad for p in leaves]
    try:
        for p, one in zip(leaves, sums, strict=False):
            p.grad = one
        sums[: len(leaves)] = [None] * len(leaves)
        with _without_hooks(leaves):
            torch.autograd.backward(roots, heads, retain_graph=keep, inputs=[*leaves, *given])
        sums[: len(leaves)] = [p.grad for p in leaves]
    finally:
        for p, one in zip(leaves, before, strict=True):
            p.grad = one


_HERE = torch.empty(0)
"""Stands for a tensor in the containers of a result."""


def _here(value: Any) -> Any:
    return _HERE if isinstance(value, Tensor) else value


class _Boundary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, split: SplitCall, *leaves: Tensor) -> tuple[Tensor, ...]:
        ctx.split = split
        ctx.set_materialize_grads(False)
        outputs = split.forward()
        rules = split.plan.rules
        fixed = [t for t, r in zip(outputs, rules, strict=True) if not r.grad]
        ctx.mark_non_differentiable(*fixed)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:  # type: ignore[override]
        return (None, *ctx.split.backward(gradients))


@contextlib.contextmanager
def _without_hooks(leaves: Sequence[Tensor]) -> Iterator[None]:
    """Hooks of the script on a parameter get its whole gradient, once, from autograd."""
    hooked: list[tuple[Any, Any]] = [(p, p._backward_hooks) for p in leaves if p._backward_hooks]
    for parameter, _ in hooked:
        parameter._backward_hooks = None
    try:
        yield
    finally:
        for parameter, hooks in hooked:
            parameter._backward_hooks = hooks


def _keeps_graph() -> bool:
    """Whether the pass that is running was called with ``retain_graph``."""
    engine: Any = torch._C
    asked = getattr(engine._autograd, "_get_current_graph_task_keep_graph", None)
    return bool(asked()) if asked is not None else False
