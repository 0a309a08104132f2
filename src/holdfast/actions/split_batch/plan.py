"""How the results of parts make the result of the whole batch, measured on a few samples.

A few samples are run together and in two parts. The shapes tell which dimension of a result has
the samples, the values whether a number is a mean or a sum, and whether a sample's result depends
on the others of its batch: then the call cannot be made in parts.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from . import structure
from .call import CallArguments, CannotSplit, ChangesArguments, random_state, rng_of, version

# Samples that are run together; in parts they are two and three.
_TRIED = 5
# Relative differences that come from another order of the same sums, by the precision computed in;
# measured on Linear, Conv2d and attention layers, with a margin.
_CLOSE = 1e-3
_CLOSE_HALF = 3e-2
# A mean over tokens or pixels that are not equally many in each sample is this close to a mean
# over samples; a guess.
_NEARLY = 0.25


@dataclass(frozen=True, slots=True)
class JoinRule:
    """How one tensor of the result is put together."""

    kind: Literal["cat", "mean", "sum"]
    grad: bool
    dim: int = 0
    per: int = 1
    """Rows of the result for each sample."""


@dataclass(slots=True)
class SplitPlan:
    """What was measured of a call."""

    rules: list[JoinRule] = field(default_factory=list[JoinRule])
    others: list[Tensor] = field(default_factory=list[Tensor])
    """Tensors with gradients that are used and are no parameters of the module."""
    moving: list[tuple[Callable[[], nn.Module | None], str]] = field(
        default_factory=list[tuple[Callable[[], nn.Module | None], str]]
    )
    """Buffers that the call changes; their modules are not kept alive."""
    random: bool = False
    """Whether random numbers are drawn."""
    why: list[str] = field(default_factory=list[str])
    """Why the result is not exactly that of the whole batch."""

    def leaves(self, module: nn.Module) -> list[Tensor]:
        """All tensors whose gradients a call computes, its arguments aside."""
        return [*(p for p in module.parameters() if p.requires_grad), *self.others]

    @contextlib.contextmanager
    def buffers_kept(self) -> Iterator[None]:
        """Put buffers back afterwards: a part that is computed again counts once."""
        live = [(module(), key) for module, key in self.moving]
        with _kept([(m, key) for m, key in live if m is not None and key in m._buffers]):
            yield


def measured(call: CallArguments) -> SplitPlan:
    """Run a few samples of the batch, together and in parts."""
    count = min(_TRIED, call.samples)
    if count < 2:
        raise CannotSplit("the batch has a single sample")
    module, plan = call.module, SplitPlan()
    training = [m for m in module.modules() if m.training]
    places = [(m, key) for m in module.modules() for key, b in m._buffers.items() if b is not None]
    before = [m._buffers[key].detach().clone() for m, key in places]  # type: ignore[union-attr]
    rng = rng_of(call.device)
    with random_state(rng, call.device), _kept(places):
        since = _newest()
        (whole, first, last), given = _runs(call, count)
        plan.random = not _same(rng, rng_of(call.device))
        plan.moving = [
            (weakref.ref(m), key)
            for (m, key), old in zip(places, before, strict=True)
            if (now := m._buffers.get(key)) is not None and not torch.equal(now, old)
        ]
        if torch.is_grad_enabled():
            plan.others = _outside(call, whole, since, {id(t) for t in given})
        together, one, two = (list(structure.tensors(r)) for r in (whole, first, last))
        if name := structure.hidden(whole):
            raise CannotSplit(f"the result holds tensors inside of a {name}")
        if not together or not len(together) == len(one) == len(two):
            raise CannotSplit("the result has other tensors for other numbers of samples")
        plan.rules = [_rule(*each, count) for each in zip(together, one, two, strict=True)]
        norms = [m for m in training if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        if norms:
            plan.why.append("BatchNorm normalises each part by itself")
        if plan.random:
            plan.why.append("dropout draws other random numbers for parts")
        if (norms or plan.random) and training:
            with _evaluating(training):
                _verify(plan, *_runs(call, count)[0], count, whole_tensors=len(together))
        else:
            _verify(plan, whole, first, last, count, whole_tensors=len(together))
    return plan


def _runs(call: CallArguments, count: int) -> tuple[tuple[Any, Any, Any], list[Tensor]]:
    """The results of some samples, of the first two of them, and of the rest; their arguments."""
    cut = count // 2
    results: list[Any] = []
    given: list[Tensor] = []
    for begin, end in (0, count), (0, cut), (cut, count):
        arguments, made = call.part(begin, end, leaves=True, copies=True)
        versions = [version(t) for t in made]
        given += made
        try:
            results.append(call.run(arguments, eager=True))
        except Exception as error:  # the model's own, on other sizes than it expects
            raise CannotSplit(f"a few samples alone fail: {_line(error)}") from None
        if [version(t) for t in made] != versions:
            raise ChangesArguments("the call changes its arguments in place")
    return (results[0], results[1], results[2]), given


def _rule(whole: Tensor, first: Tensor, last: Tensor, count: int) -> JoinRule:
    grad, cut = whole.requires_grad, count // 2
    if whole.shape == first.shape == last.shape:
        return JoinRule("mean", grad)
    if whole.ndim == first.ndim == last.ndim:
        dims = [d for d in range(whole.ndim) if whole.shape[d] != first.shape[d]]
        if len(dims) == 1:
            d, per = dims[0], whole.shape[dims[0]] // count
            sizes = whole.shape[d], first.shape[d], last.shape[d]
            same = all(last.shape[i] == whole.shape[i] for i in range(whole.ndim) if i != d)
            if per and same and sizes == (per * count, per * cut, per * (count - cut)):
                return JoinRule("cat", grad, d, per)
    raise CannotSplit(
        f"a result of the shape {tuple(whole.shape)} for {count} samples has the shape "
        f"{tuple(first.shape)} for {cut}"
    )


def _verify(
    plan: SplitPlan, whole: Any, first: Any, last: Any, count: int, *, whole_tensors: int
) -> None:
    """Compare the parts with the whole; decides between mean and sum."""
    together, one, two = (list(structure.tensors(r)) for r in (whole, first, last))
    if len(together) != whole_tensors:
        plan.why.append("whether samples depend on each other could not be measured")
        return
    share = (count // 2) / count
    for i, (a, b, c) in enumerate(zip(together, one, two, strict=True)):
        rule, close = plan.rules[i], _CLOSE
        a, b, c = a.detach(), b.detach(), c.detach()
        if a.dtype in (torch.float16, torch.bfloat16) or torch.is_autocast_enabled(a.device.type):
            close = _CLOSE_HALF
        if rule.kind == "cat":
            away = _distance(torch.cat([b, c], rule.dim), a)
            if away > close:
                raise CannotSplit(
                    "samples depend on each other: computed in parts, a result differs by "
                    f"{away:.1%}"
                )
            continue
        if not a.is_floating_point():
            if not torch.equal(a, b):
                raise CannotSplit("a result that is no floating-point number depends on the batch")
            continue
        mean, total = _distance(b * share + c * (1 - share), a), _distance(b + c, a)
        if total < mean and total <= close:
            plan.rules[i] = JoinRule("sum", rule.grad)
        elif mean > _NEARLY:
            raise CannotSplit("a number in the result is neither a mean nor a sum over samples")
        elif mean > close:
            plan.why.append("a loss made inside the model does not weigh all samples alike")


def _distance(parts: Tensor, whole: Tensor) -> float:
    """The largest difference, relative to the largest value."""
    if parts.shape != whole.shape:
        return float("inf")
    if not whole.is_floating_point() or not whole.numel():
        return float((parts != whole).float().mean()) if whole.numel() else 0.0
    parts, whole = parts.double().nan_to_num(), whole.double().nan_to_num()
    size = float(whole.abs().max())
    return float((parts - whole).abs().max()) / size if size else float((parts != 0).any())


def _outside(call: CallArguments, result: Any, since: int, given: set[int]) -> list[Tensor]:
    """Tensors with gradients that the result was made of beside parameters and arguments.

    Args:
        call: the call.
        result: what it returned.
        since: the number that autograd gave to the newest operation before it.
        given: by ``id``, the arguments.
    """
    known = {id(p) for p in call.module.parameters()}
    found: dict[int, Tensor] = {}
    todo = [t.grad_fn for t in structure.tensors(result) if t.grad_fn is not None]
    seen = set(todo)
    while todo:
        node = todo.pop()
        if node._sequence_nr() < since:
            raise CannotSplit("the call uses a tensor with a graph that was made before it")
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor) and id(variable) not in known and id(variable) not in given:
            found[id(variable)] = variable
        for inner, _ in node.next_functions:
            if inner is not None and inner not in seen:
                seen.add(inner)
                todo.append(inner)
    return list(found.values())


def _newest() -> int:
    made = torch.ones((), requires_grad=True) * 1
    return 0 if made.grad_fn is None else made.grad_fn._sequence_nr()


@contextlib.contextmanager
def _kept(places: Sequence[tuple[nn.Module, str]]) -> Iterator[None]:
    tensors = [(m, key, m._buffers[key]) for m, key in places]
    copies = [t.detach().clone() if t is not None else None for _, _, t in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for (module, key, tensor), copy in zip(tensors, copies, strict=True):
                if tensor is not None and copy is not None and not torch.equal(tensor, copy):
                    tensor.copy_(copy)
                if module._buffers.get(key) is not tensor:
                    module._buffers[key] = tensor


@contextlib.contextmanager
def _evaluating(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Without dropout and batch statistics; by the flag alone, no method of the script runs."""
    for module in modules:
        module.__dict__["training"] = False
    try:
        yield
    finally:
        for module in modules:
            module.__dict__["training"] = True


def _same(one: Sequence[Tensor], two: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def _line(error: BaseException) -> str:
    text = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {text}"[:160]
